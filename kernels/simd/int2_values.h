#pragma once

#include <array>
#include <bit>
#include <cstdint>

// INT2 codes of V, rotated back: (H64 z) * (s / 16) is n * (s / 2) with n = H64 h - 96 e0, since z = 8h - 12.
// |n| <= 96 has 7 bits and s, whose fp16 bits are a byte << 7, has 4: the product is an fp16 exactly, as long
// as it is a normal one. All n of a group have the same last bit: each sums all 64 odd numbers 2h - 3 with
// signs, half of which differ from those of another row. So a group has 49 absolute values, few enough to
// look up. Nothing here is compiled per target.

namespace kvtier::simd {

/// The fp16 of |n| * (s / 2) in two bytes, at |n| / 2, with the exponent of the largest s.
struct Int2Values {
  alignas(64) std::array<uint8_t, 64> low;
  alignas(64) std::array<uint8_t, 64> high;
};

/// Scale bytes are an exponent and three bits of a fraction. The largest exponent in use; the least one whose
/// products are all normal.
inline constexpr uint32_t kFractionBits = 3, kFractions = 1 << kFractionBits;
inline constexpr uint32_t kInt2Exponent = 25, kInt2ExponentMin = 2;
inline constexpr uint8_t kInt2ScaleMin = kInt2ExponentMin << kFractionBits;

constexpr Int2Values Int2ValuesOf(uint32_t significand, uint32_t last_bit) {
  Int2Values values = {};
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t product = (2 * i + last_bit) * significand;  // below 2048
    if (product == 0) continue;
    const uint32_t bits = static_cast<uint32_t>(std::bit_width(product));
    // s / 2 = significand * 2^(exponent - 19)
    const uint32_t fp16 = (bits - 1 + kInt2Exponent - 4) << 10 | ((product << (11 - bits)) & 0x3ff);
    values.low[i] = static_cast<uint8_t>(fp16);
    values.high[i] = static_cast<uint8_t>(fp16 >> 8);
  }
  return values;
}

/// [2 * fraction + last bit of n], and after the fractions those of s = 0.
inline constexpr auto kInt2Values = [] {
  std::array<Int2Values, 2 * kFractions + 2> values = {};
  for (uint32_t i = 0; i < 2 * kFractions; ++i) values[i] = Int2ValuesOf(kFractions + i / 2, i % 2);
  return values;
}();

/// What a scale byte means for them, in every byte of a word.
struct Int2Scale {
  uint32_t first_values;  ///< for an even n
  uint32_t shift;         ///< what saturated subtraction takes from a high byte; a zero stays zero
  uint32_t sign;          ///< the bits of a negative n that go into a high byte
};

/// [scale byte]. Those that are too small or too large have some entry too.
inline constexpr auto kInt2Scales = [] {
  std::array<Int2Scale, 256> scales = {};
  scales[0] = {.first_values = 2 * kFractions, .shift = 0, .sign = 0};
  for (uint32_t i = 1; i < 256; ++i) {
    const uint32_t exponent = i >> kFractionBits;
    scales[i] = {.first_values = 2 * (i % kFractions),
                 .shift = exponent < kInt2Exponent ? (kInt2Exponent - exponent) * 0x04040404 : 0,
                 .sign = 0x80808080};
  }
  return scales;
}();

}  // namespace kvtier::simd
