#pragma once

#include <cstdint>

#include "kernels/boost.h"

// Copies of GatherBoostBits (kernels/boost.h) with a fault in their barriers: what the teams of the tests are
// there to find. Without a fault the copy is the original, which a test checks.

namespace kvtier {

enum class BarrierFault {
  kNone,
  kMissingBeforeIds,  ///< lane 0 gathers ids from flags that other lanes have not written yet
  kMissingAfterIds,   ///< the other lanes use ids that lane 0 has not written yet
  kOneLaneOnly,       ///< lane 0 alone meets a barrier; the others run to another one, or to the end
};

template <BarrierFault fault, Team T>
void FaultySelectBoost(const T& team, const BlockShape& shape, BoostScratch& scratch) {
  const uint32_t k_dim = shape.k_dim;
  for (uint32_t c = team.rank(); c < k_dim; c += team.size()) {
    const uint16_t own = scratch.scale[c];
    uint32_t ahead = 0;
    for (uint32_t other = 0; other < c; ++other) ahead += scratch.scale[other] >= own;
    for (uint32_t other = c + 1; other < k_dim; ++other) ahead += scratch.scale[other] > own;
    scratch.is_boosted[c] = ahead < shape.nb;
  }
  if constexpr (fault != BarrierFault::kMissingBeforeIds) team.sync();
  if (team.rank() == 0) {
    uint32_t count = 0;
    for (uint32_t c = 0; c < k_dim; ++c) {
      if (scratch.is_boosted[c]) scratch.ids[count++] = static_cast<uint8_t>(c);
    }
    if constexpr (fault == BarrierFault::kOneLaneOnly) team.sync();
  }
  if constexpr (fault != BarrierFault::kMissingAfterIds) team.sync();
}

template <BarrierFault fault, Team T>
void FaultyGatherBoostBits(const T& team, const GatherBoostArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t head = team.block(), k_dim = shape.k_dim, nb = shape.nb;
  auto& scratch = *reinterpret_cast<BoostScratch*>(team.scratch());
  for (uint32_t c = team.rank(); c < k_dim; c += team.size())
    scratch.scale[c] = Load16(args.in.k_scale + 2 * (uint64_t{head} * k_dim + c));
  team.sync();
  FaultySelectBoost<fault>(team, shape, scratch);
  for (uint32_t i = team.rank(); i < nb; i += team.size())
    args.out.boost_ids[uint64_t{head} * nb + i] = scratch.ids[i];
  for (uint32_t token = team.rank(); token < PaddedTokens(shape); token += team.size()) {
    const uint64_t row = PlaneRow(shape, head, token);
    uint8_t codes[kMaxHeadDim] = {};
    for (uint32_t first = 0; first < k_dim; first += kTileCodes)
      UnpackTile<kLowShift>(args.in.k_low + row * (k_dim / 4) + first / 4, TileCodes(k_dim, first),
                            codes + first);
    PackBoostRow(codes, scratch.ids, nb, args.out.boost_low + row * (nb / 4));
  }
}

/// A layer on which every fault shows: more channels than lanes, more tokens than lanes, scales that ascend,
/// so that the boosted channels are the last half.
inline constexpr BlockShape kCanaryShape = {
    .layers = 1, .kv_heads = 1, .k_dim = 128, .v_dim = 16, .tokens = 64, .nraw = 0, .nb = 64};

}  // namespace kvtier
