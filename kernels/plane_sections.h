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

}  // namespace kvtier
