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

/// Where a column's low bits lie in a row of the boost: by run, a byte for each channel with the byte of the
/// row (six bits) and which of its four codes (two). Channels without any are left out of the mask.
struct BoostPlaces {
  uint32_t place[4] = {}, mask[4] = {};
};
KVTIER_HD inline BoostPlaces BoostPlacesOf(const uint16_t* boost, const Column& column) {
  BoostPlaces places;
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) {
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint32_t place = boost[column.Run(r) + i];
      if (place == kNotBoosted) continue;
      places.place[r] |= place >> 1 << 8 * i;
      places.mask[r] |= 3u << 8 * i;
    }
  }
  return places;
}
/// Codes of a column's runs where there is no low plane, as RunCodesOf: boosted channels' low bits, else 0.
KVTIER_HD inline void AddBoost(const uint8_t* row, const BoostPlaces& places, RunCodes& codes) {
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) {
    uint32_t run = 0;
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint32_t place = places.place[r] >> 8 * i & 0xff;
      run |= (uint32_t{row[place >> 2]} >> 2 * (place & 3) & 3u) << 8 * i;
    }
    codes.of[r] |= run & places.mask[r];
  }
}

/// Scale and minimum of a channel, ready for DequantizeK.
struct KChannelRange {
  float scale, minimum;
};
KVTIER_HD inline KChannelRange LoadKRange(const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                                          uint32_t head, uint32_t channel, const uint16_t* boost) {
  const uint64_t at = 2 * (uint64_t{head} * shape.k_dim + channel);
  const float scale = FromHalf(LoadWord<uint16_t>(in.k_scale + at)),
              minimum = FromHalf(LoadWord<uint16_t>(in.k_min + at));
  const bool is_coarse = in.k_low == nullptr && boost[channel] == kNotBoosted;
  return {.scale = scale, .minimum = is_coarse ? KMinimumInt2(scale, minimum) : minimum};
}

/// A run of a raw row.
KVTIER_HD inline Four LoadHalves(const uint8_t* halves) {
  const auto word = LoadWord<uint64_t>(halves);
  Four four;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) four.value[i] = FromHalf(static_cast<uint16_t>(word >> 16 * i));
  return four;
}

/// Rows of the planes as a lane reads them: a column of every step-th row. A reader asks for the next row's
/// words before it turns to those of this one, so that memory is at work meanwhile.
struct PlaneWords {
  uint32_t high, low;
};
struct PlaneReader {
  const uint8_t *high, *low;  ///< of the next row; low is null where there is none
  uint32_t step;              ///< bytes from one row to the next

  KVTIER_HD PlaneReader(const uint8_t* high_plane, const uint8_t* low_plane, uint64_t row, uint32_t row_bytes,
                        const Column& column, uint32_t rows)
      : high(high_plane + row * row_bytes + column.PlaneByte()),
        low(low_plane == nullptr ? nullptr : low_plane + row * row_bytes + column.PlaneByte()),
        step(rows * row_bytes) {}

  KVTIER_HD PlaneWords Next() {
    const PlaneWords words = {.high = LoadWord<uint32_t>(high),
                              .low = low == nullptr ? 0 : LoadWord<uint32_t>(low)};
    high += step;
    low = low == nullptr ? nullptr : low + step;
    return words;
  }
};

/// Codes of a column of one row of K, which is not a raw one. `places` are those of the column where there is
/// a boost.
KVTIER_HD inline RunCodes LoadKCodes(const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                                     uint64_t row, const Column& column, const BoostPlaces& places) {
  const PlaneWords words = PlaneReader(in.k_high, in.k_low, row, shape.k_dim / 4, column, 0).Next();
  RunCodes codes = RunCodesOf(words.high, words.low);
  if (in.k_low == nullptr && in.boost_ids != nullptr)
    AddBoost(in.boost_low + row * (shape.nb / 4), places, codes);
  return codes;
}

/// Codes of a column of V to z = 2c - 15, or 2c - 12 of INT2 codes that come as h << 2.
KVTIER_HD inline void VGridOf(const PlaneWords& words, bool has_low, float* z) {
  const RunCodes codes = RunCodesOf(words.high, words.low);
  const auto offset = static_cast<float>(has_low ? kVOffsetInt4 : kVOffsetInt2);
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) {
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) z[r * kRun + i] = ExactFma(2, FloatOfByte(codes.of[r], i), offset);
  }
}

}  // namespace kvtier::internal
