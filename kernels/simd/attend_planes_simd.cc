#include "kernels/simd/attend_simd.h"

// clang-format off
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/attend_planes_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/highway.h>

#include "kernels/simd/attend_planes-inl.h"
#include "kernels/team.h"

KVTIER_BEFORE_DOT_BYTES
namespace kvtier {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void AttendPlanesOn(const AttendPlanesArgs& args) {
  LaunchSerial(AttendLaunch(args.query), [&](const SerialTeam& team) { AttendPlanes(team, args); });
}
#else

/// What the next head has in the planes: they lie one head after the other.
HWY_INLINE Prefetcher NextHead(const AttendPlanesArgs& args, uint32_t head, uint32_t chunks) {
  const BlockShape& shape = args.shape;
  const uint32_t tokens = PaddedTokens(shape);
  Prefetcher prefetcher;
  const uint64_t row = PlaneRow(shape, head + 1, 0), k_bytes = shape.k_dim / 4, v_bytes = shape.v_dim / 4;
  prefetcher.Add(args.in.k_high + row * k_bytes, tokens * k_bytes);
  if (args.in.k_low != nullptr) {
    prefetcher.Add(args.in.k_low + row * k_bytes, tokens * k_bytes);
  } else if (args.in.boost_ids != nullptr) {
    prefetcher.Add(args.in.boost_low + row * (shape.nb / 4), tokens * (shape.nb / 4));
  }
  prefetcher.Add(args.in.v_high + row * v_bytes, tokens * v_bytes);
  if (args.in.v_low != nullptr) prefetcher.Add(args.in.v_low + row * v_bytes, tokens * v_bytes);
  prefetcher.Add(args.in.v_scale + row * VGroups(shape), tokens * VGroups(shape));
  prefetcher.SpreadOver(chunks * tokens * (1 + VGroups(shape)));
  return prefetcher;
}

struct PlanesKernels {
  const AttendPlanesArgs& args;
  const HeadPlanes& planes;
  QueryChunk& chunk;
  Prefetcher& prefetcher;
  template <uint32_t Q>
  void Run(uint32_t first, uint32_t queries, uint32_t head) const {
    AttendChunk<Q>(args, first, queries, head, planes, chunk, prefetcher);
  }
};

void AttendPlanesOn(const AttendPlanesArgs& args) {
  HeadPlanes planes;
  QueryChunk chunk;
  const uint32_t group = args.query.query_heads / args.shape.kv_heads;
  for (uint32_t head = 0; head < args.shape.kv_heads; ++head) {
    LoadHead(args, head, planes);
    Prefetcher prefetcher = NextHead(args, head, (group + kQueryChunk - 1) / kQueryChunk);
    ForEachChunk(args.shape, args.query.query_heads, head, PlanesKernels{args, planes, chunk, prefetcher});
  }
}

#endif

void MergeOn(const AttentionPartial& from, uint32_t query_heads, uint32_t v_dim,
             const AttentionPartial& into) {
  for (uint32_t head = 0; head < query_heads; ++head) MergeAttentionHead(from, head, v_dim, into);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

HWY_EXPORT(AttendPlanesOn);
HWY_EXPORT(MergeOn);

void AttendPlanesSimd(const AttendPlanesArgs& args) {
  HWY_DYNAMIC_DISPATCH(AttendPlanesOn)(args);
}
void MergeAttentionSimd(const AttentionPartial& from, uint32_t query_heads, uint32_t v_dim,
                        const AttentionPartial& into) {
  HWY_DYNAMIC_DISPATCH(MergeOn)(from, query_heads, v_dim, into);
}

}  // namespace kvtier
#endif
