#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/plane_sections.h"
#include "kernels/team.h"
#include "kernels/tile.h"

// Boost: the `nb` K channels of a head with the largest scales keep their low bits at INT2.

namespace kvtier {

struct BoostScratch {
  uint16_t scale[kMaxHeadDim];  ///< fp16 bits; scales are not negative, so bits order as values do
  uint8_t is_boosted[kMaxHeadDim];
  uint8_t ids[kMaxHeadDim];
};

/// Fills scratch.is_boosted and scratch.ids[nb] (ascending; ties go to the lower channel) from scratch.scale.
/// Looks at the bits alone, so any bytes give nb distinct ids below k_dim. Ends synchronized.
template <Team T>
KVTIER_HD void SelectBoost(const T& team, const BlockShape& shape, BoostScratch& scratch) {
  const uint32_t k_dim = shape.k_dim;
  for (uint32_t c = team.rank(); c < k_dim; c += team.size()) {
    const uint16_t own = scratch.scale[c];
    uint32_t ahead = 0;
    for (uint32_t other = 0; other < c; ++other) ahead += scratch.scale[other] >= own;
    for (uint32_t other = c + 1; other < k_dim; ++other) ahead += scratch.scale[other] > own;
    scratch.is_boosted[c] = ahead < shape.nb;
  }
  team.sync();
  if (team.rank() == 0) {
    uint32_t count = 0;
    for (uint32_t c = 0; c < k_dim; ++c) {
      if (scratch.is_boosted[c]) scratch.ids[count++] = static_cast<uint8_t>(c);
    }
  }
  team.sync();
}

/// Low bits of the boosted channels of one row: codes[k_dim] to plane[nb / 4].
KVTIER_HD inline void PackBoostRow(const uint8_t* codes, const uint8_t* ids, uint32_t nb, uint8_t* plane) {
  for (uint32_t first = 0; first < nb; first += kTileCodes) {
    const uint32_t n = TileCodes(nb, first);
    uint8_t gathered[kTileCodes];
    // SelectBoost has found nb ids, which the analyzer cannot know.
    for (uint32_t i = 0; i < n; ++i) gathered[i] = codes[ids[first + i]];  // NOLINT(clang-analyzer-*)
    PackTile<kLowShift>(gathered, n, plane + first / 4);
  }
}

/// The reverse: codes[ids] |= plane. Ids are below the length of codes.
KVTIER_HD inline void UnpackBoostRow(const uint8_t* plane, const uint8_t* ids, uint32_t nb, uint8_t* codes) {
  for (uint32_t first = 0; first < nb; first += kTileCodes) {
    const uint32_t n = TileCodes(nb, first);
    uint8_t gathered[kTileCodes] = {};
    UnpackTile<kLowShift>(plane + first / 4, n, gathered);
    for (uint32_t i = 0; i < n; ++i) codes[ids[first + i]] |= gathered[i];
  }
}

struct GatherBoostArgs {
  BlockShape shape;
  PlaneSections<const uint8_t> in;  ///< k_scale, k_low
  PlaneSections<uint8_t> out;       ///< boost_ids, boost_low
};

constexpr LaunchShape GatherBoostLaunch(const BlockShape& shape) {
  return {.blocks = shape.kv_heads, .scratch_bytes = sizeof(BoostScratch)};
}

/// Demotion to INT2: boost ids and bits from the scales and the low plane of K. One block per head.
template <Team T>
KVTIER_HD void GatherBoostBits(const T& team, const GatherBoostArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t head = team.block(), k_dim = shape.k_dim, nb = shape.nb;
  auto& scratch = *reinterpret_cast<BoostScratch*>(team.scratch());
  for (uint32_t c = team.rank(); c < k_dim; c += team.size())
    scratch.scale[c] = Load16(args.in.k_scale + 2 * (uint64_t{head} * k_dim + c));
  team.sync();
  SelectBoost(team, shape, scratch);

  for (uint32_t i = team.rank(); i < nb; i += team.size()) {
    // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): SelectBoost fills nb ids.
    args.out.boost_ids[uint64_t{head} * nb + i] = scratch.ids[i];
  }
  for (uint32_t token = team.rank(); token < PaddedTokens(shape); token += team.size()) {
    const uint64_t row = PlaneRow(shape, head, token);
    uint8_t codes[kMaxHeadDim] = {};
    for (uint32_t first = 0; first < k_dim; first += kTileCodes)
      UnpackTile<kLowShift>(args.in.k_low + row * (k_dim / 4) + first / 4, TileCodes(k_dim, first),
                            codes + first);
    PackBoostRow(codes, scratch.ids, nb, args.out.boost_low + row * (nb / 4));
  }
}

}  // namespace kvtier
