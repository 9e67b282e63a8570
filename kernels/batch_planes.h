#pragma once

#include <bit>
#include <cstdint>

#include "kernels/batch_rows.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/plane_sections.h"
#include "kernels/team.h"
#include "kernels/tile.h"

// How lanes that share a head by columns read the plane family: what a column of a row is, of K and of V.

namespace kvtier::internal {

/// Where the low bits of a K channel lie in a row of the boost: byte, then bit. 0xffff: it has none.
inline constexpr uint16_t kNotBoosted = 0xffff;

/// The boost's places by channel. Ids of a damaged image are forced into the row, so that all keep in bounds;
/// of equal ones any may win. Ends synchronized.
template <Team T>
KVTIER_HD void FindBoost(const T& team, const BlockShape& shape, const uint8_t* ids, uint16_t* boost) {
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size()) boost[c] = kNotBoosted;
  team.sync();
  for (uint32_t i = team.rank(); ids != nullptr && i < shape.nb; i += team.size()) {
    const uint32_t id = ids[i];
    const PlaneBits bits = PlaneBitsOf(i, shape.nb);
    boost[id < shape.k_dim ? id : shape.k_dim - 1u] = static_cast<uint16_t>(bits.byte << 3 | bits.shift);
  }
  team.sync();
}

/// The low codes' word of a column of K where there is no low plane: boosted channels' bits, else 0.
KVTIER_HD inline uint32_t BoostWord(const uint8_t* row, const uint16_t* boost, const Column& column) {
  uint32_t word = 0;
  KVTIER_HD_ROLLED
  for (uint32_t r = 0; r < 4; ++r) {
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint16_t place = boost[column.Run(r) + i];
      if (place != kNotBoosted) word |= (row[place >> 3] >> (place & 7) & 3u) << (8 * i + 2 * r);
    }
  }
  return word;
}

/// Scale and minimum of a channel, ready for DequantizeK.
struct KChannelRange {
  float scale, minimum;
};
KVTIER_HD inline KChannelRange LoadKRange(const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                                          uint32_t head, uint32_t channel, const uint16_t* boost) {
  const uint64_t at = 2 * (uint64_t{head} * shape.k_dim + channel);
  const float scale = FromHalf(Load16(in.k_scale + at)), minimum = FromHalf(Load16(in.k_min + at));
  const bool is_coarse = in.k_low == nullptr && boost[channel] == kNotBoosted;
  return {.scale = scale, .minimum = is_coarse ? KMinimumInt2(scale, minimum) : minimum};
}

KVTIER_HD inline Four LoadHalves(const uint8_t* halves) {
  Four four;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) four.value[i] = FromHalf(Load16(halves + 2 * i));
  return four;
}

/// The codes of a column of K, where row `row` of the planes is not a raw one.
struct KCodes {
  uint32_t high, low;

  KVTIER_HD Four Run(uint32_t r) const { return UnpackRun(high, low, r); }
};
KVTIER_HD inline KCodes LoadKCodes(const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                                   uint64_t row, const Column& column, const uint16_t* boost) {
  const uint64_t at = row * (shape.k_dim / 4) + column.PlaneByte();
  KCodes codes = {.high = LoadWord<uint32_t>(in.k_high + at), .low = 0};
  if (in.k_low != nullptr) {
    codes.low = LoadWord<uint32_t>(in.k_low + at);
  } else if (in.boost_ids != nullptr) {
    codes.low = BoostWord(in.boost_low + row * (shape.nb / 4), boost, column);
  }
  return codes;
}

/// Codes of a column of V to z = 2c - 15, or 2c - 12 of INT2 codes that come as h << 2.
KVTIER_HD inline void LoadVCodes(const PlaneSections<const uint8_t>& in, uint64_t at, float* z) {
  const auto high = LoadWord<uint32_t>(in.v_high + at);
  const uint32_t low = in.v_low != nullptr ? LoadWord<uint32_t>(in.v_low + at) : 0;
  const float base = 8388608.0f - static_cast<float>(in.v_low != nullptr ? kVOffsetInt4 : kVOffsetInt2);
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) {
    const uint32_t four = (high >> 2 * r & 0x03030303) << 3 | (low >> 2 * r & 0x03030303) << 1;
    // As in UnpackRun, 2^23 + 2c.
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i)
      z[r * kRun + i] = std::bit_cast<float>(0x4b000000 | (four >> 8 * i & 0xff)) - base;
  }
}

}  // namespace kvtier::internal
