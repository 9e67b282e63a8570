#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"

// The two FP8 formats of the Open Compute Project. E4M3 (its FN variant): sign, 4 bits of exponent with bias
// 7, 3 of mantissa, largest 448, NaN 0x7f and 0xff, no infinity. E5M2: bias 15, largest 57344, infinities and
// NaN as in fp16, whose upper byte it is. Without branches or tables, as in numerics.h.

namespace kvtier {

inline constexpr float kE4m3Max = 448.0f, kE5m2Max = 57344.0f;
inline constexpr uint8_t kFp8Nan = 0x7f;        ///< of both formats
inline constexpr uint8_t kE5m2Infinity = 0x7c;  ///< magnitudes from here on are not finite

constexpr bool IsFp8(DType dtype) {
  return dtype == DType::kE4m3 || dtype == DType::kE5m2;
}

/// Exact. NaN stays NaN.
KVTIER_HD inline float Fp32FromE4m3(uint8_t code) {
  // Seven bits moved to where fp16 has them stand for 2^-8 of the value, subnormals included.
  const auto half = static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7);
  const float value = Fp32FromFp16(half) * 256.0f;
  return (code & 0x7f) == kFp8Nan ? std::numeric_limits<float>::quiet_NaN() : value;
}
/// Exact. Infinities and NaN stay what they are.
KVTIER_HD inline float Fp32FromE5m2(uint8_t code) {
  return Fp32FromFp16(static_cast<uint16_t>(code << 8));
}

/// Nearest number with `mantissa_bits`, ties to even, normal from 2^min_exponent on, at most `largest`
/// (infinity included). NaN becomes a NaN. One addition rounds: in the binade where the last place of a float
/// is that of the result (see Fp16FromFinite).
template <uint32_t mantissa_bits, int32_t min_exponent>
KVTIER_HD inline uint8_t Fp8FromFp32(float value, float largest) {
  constexpr uint32_t kDropped = 23 - mantissa_bits;
  constexpr uint32_t kMinBinade = static_cast<uint32_t>(127 + min_exponent) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float absolute = std::bit_cast<float>(bits & 0x7fffffff);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const float magnitude = absolute < largest ? absolute : largest;
  const uint32_t own_binade = std::bit_cast<uint32_t>(magnitude) & 0x7f800000;
  const uint32_t binade = own_binade > kMinBinade ? own_binade : kMinBinade;
  const uint32_t rounder = binade + (kDropped << 23);
  const uint32_t places = std::bit_cast<uint32_t>(magnitude + std::bit_cast<float>(rounder)) - rounder;
  const uint32_t code = ((binade - kMinBinade) >> kDropped) + places;
  return static_cast<uint8_t>((bits >> 24 & 0x80) | (is_nan ? kFp8Nan : code));
}

/// Round to nearest even; beyond the range its end; NaN stays NaN.
KVTIER_HD inline uint8_t E4m3FromFp32(float value) {
  return Fp8FromFp32<3, -6>(value, kE4m3Max);
}
KVTIER_HD inline uint8_t E5m2FromFp32(float value) {
  return Fp8FromFp32<2, -14>(value, kE5m2Max);
}

}  // namespace kvtier
