#include "kernels/simd/attend_simd.h"

// clang-format off
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/attend_rows_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/highway.h>

#include "kernels/simd/attend_kv8-inl.h"
#include "kernels/simd/attend_rows-inl.h"
#include "kernels/team.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void AttendRowsOn(const AttendRowsArgs& args) {
  LaunchSerial(AttendLaunch(args.query), [&](const SerialTeam& team) { AttendRows(team, args); });
}
void AttendKv8On(const AttendKv8Args& args) {
  LaunchSerial(AttendLaunch(args.query), [&](const SerialTeam& team) { AttendKv8(team, args); });
}

#else

template <typename Elements>
struct RowsKernels {
  const AttendRowsArgs& args;
  RowsChunk& chunk;
  template <uint32_t Q>
  void Run(uint32_t first, uint32_t queries, uint32_t head) const {
    AttendRowsChunk<Q, Elements>(args, first, queries, head, chunk);
  }
};

template <typename Elements>
void AttendElements(const AttendRowsArgs& args) {
  RowsChunk chunk;
  for (uint32_t head = 0; head < args.shape.kv_heads; ++head)
    ForEachChunk(args.shape, args.query.query_heads, head, RowsKernels<Elements>{args, chunk});
}

struct Kv8Kernels {
  const AttendKv8Args& args;
  RowsChunk& chunk;
  template <uint32_t Q>
  void Run(uint32_t first, uint32_t queries, uint32_t head) const {
    AttendKv8Chunk<Q>(args, first, queries, head, chunk);
  }
};

void AttendKv8On(const AttendKv8Args& args) {
  RowsChunk chunk;
  for (uint32_t head = 0; head < args.shape.kv_heads; ++head)
    ForEachChunk(args.shape, args.query.query_heads, head, Kv8Kernels{args, chunk});
}

void AttendRowsOn(const AttendRowsArgs& args) {
  switch (args.shape.dtype) {
    case DType::kBf16:
      return AttendElements<Bf16Elements>(args);
    case DType::kE4m3:
      return AttendElements<E4m3Elements>(args);
    case DType::kE5m2:
      return AttendElements<E5m2Elements>(args);
    default:
      return AttendElements<Fp16Elements>(args);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

HWY_EXPORT(AttendRowsOn);
HWY_EXPORT(AttendKv8On);

void AttendRowsSimd(const AttendRowsArgs& args) {
  HWY_DYNAMIC_DISPATCH(AttendRowsOn)(args);
}
void AttendKv8Simd(const AttendKv8Args& args) {
  HWY_DYNAMIC_DISPATCH(AttendKv8On)(args);
}

}  // namespace kvtier
#endif
