#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/tile.h"

namespace kvtier {

/// Tokens of the plane family, padded to a multiple of 4 by repeating the last one.
KVTIER_HD constexpr uint32_t PaddedTokens(const BlockShape& s) {
  return (uint32_t{s.tokens} + 3) / 4 * 4;
}
/// Groups of 64 V channels (the last may be smaller) that share a scale.
KVTIER_HD constexpr uint32_t VGroups(const BlockShape& s) {
  return (uint32_t{s.v_dim} + kTileCodes - 1) / kTileCodes;
}

/// One layer of the plane family as bare pointers (Byte is uint8_t, const or not; no alignment asked). fp16
/// are pairs of bytes. Tp = PaddedTokens. Null where the layer lacks the section.
template <typename Byte>
struct PlaneSections {
  Byte* k_scale = nullptr;    ///< fp16 [heads][k_dim]
  Byte* k_min = nullptr;      ///< fp16 [heads][k_dim]
  Byte* v_scale = nullptr;    ///< [heads][Tp][VGroups]: fp16 bits >> 7
  Byte* k_raw = nullptr;      ///< fp16 [heads][nraw][k_dim]
  Byte* v_raw = nullptr;      ///< fp16 [heads][nraw][v_dim]
  Byte* k_high = nullptr;     ///< [heads][Tp][k_dim / 4]
  Byte* v_high = nullptr;     ///< [heads][Tp][v_dim / 4]
  Byte* boost_ids = nullptr;  ///< [heads][nb], ascending
  Byte* boost_low = nullptr;  ///< [heads][Tp][nb / 4]
  Byte* k_low = nullptr;      ///< [heads][Tp][k_dim / 4]
  Byte* v_low = nullptr;      ///< [heads][Tp][v_dim / 4]
};

/// Index of (head, token) among all rows of a plane.
KVTIER_HD constexpr uint64_t PlaneRow(const BlockShape& s, uint32_t head, uint32_t token) {
  return uint64_t{head} * PaddedTokens(s) + token;
}

/// The sections of one head alone, for a shape that has only it.
template <typename Byte>
KVTIER_HD constexpr PlaneSections<Byte> HeadSections(const BlockShape& s, const PlaneSections<Byte>& layer,
                                                     uint32_t head) {
  const auto skip = [](Byte* section, uint64_t bytes) {
    return section == nullptr ? nullptr : section + bytes;
  };
  const uint64_t row = PlaneRow(s, head, 0), raw_row = uint64_t{head} * s.nraw;
  return {.k_scale = skip(layer.k_scale, uint64_t{2} * head * s.k_dim),
          .k_min = skip(layer.k_min, uint64_t{2} * head * s.k_dim),
          .v_scale = skip(layer.v_scale, row * VGroups(s)),
          .k_raw = skip(layer.k_raw, 2 * raw_row * s.k_dim),
          .v_raw = skip(layer.v_raw, 2 * raw_row * s.v_dim),
          .k_high = skip(layer.k_high, row * (s.k_dim / 4)),
          .v_high = skip(layer.v_high, row * (s.v_dim / 4)),
          .boost_ids = skip(layer.boost_ids, uint64_t{head} * s.nb),
          .boost_low = skip(layer.boost_low, row * (s.nb / 4)),
          .k_low = skip(layer.k_low, row * (s.k_dim / 4)),
          .v_low = skip(layer.v_low, row * (s.v_dim / 4))};
}

}  // namespace kvtier
