#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

// Conversions between the 16-bit formats and fp32, in integer arithmetic without branches or tables, so that
// every compiler gives the same bits and vectorizes them. Subnormals are exact; nothing here depends on the
// FP environment beyond round to nearest even with subnormals on.

namespace kvtier {

inline constexpr float kFp16Max = 65504.0f;
inline constexpr uint16_t kFp16Infinity = 0x7c00;
/// Magnitude bits of the smallest BF16 above the FP16 range (65536).
inline constexpr uint16_t kBf16AboveFp16 = 0x4780;

/// 16 bits at any address: image bytes and engine memory have no C++ type.
KVTIER_HD inline uint16_t Load16(const void* source) {
  uint16_t value;
  memcpy(&value, source, sizeof value);
  return value;
}
KVTIER_HD inline void Store16(void* target, uint16_t value) {
  memcpy(target, &value, sizeof value);
}

/// Exact. NaN stays NaN.
KVTIER_HD inline float Fp32FromFp16(uint16_t half) {
  constexpr int32_t kRebias = (127 - 15) << 23;
  constexpr float kSmallestNormal = 1.0f / 16384;  // 2^-14
  const int32_t magnitude = half & 0x7fff;
  int32_t bits = (magnitude << 13) + kRebias;
  bits += magnitude >= kFp16Infinity ? kRebias : 0;
  // A subnormal: give it the implicit one of exponent 2^-14, then take that one away again.
  const float with_one = std::bit_cast<float>((magnitude << 13) + kRebias + (1 << 23));
  bits = magnitude < 0x0400 ? std::bit_cast<int32_t>(with_one - kSmallestNormal) : bits;
  return std::bit_cast<float>(static_cast<uint32_t>(bits) | static_cast<uint32_t>(half & 0x8000) << 16);
}

/// The power of two below or at |value|, as a float; at least 2^-14, where the places of fp16 end.
KVTIER_HD inline float Fp16Binade(float value) {
  constexpr float kSmallestNormal = 1.0f / 16384;
  const float binade = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7f800000);
  return binade > kSmallestNormal ? binade : kSmallestNormal;
}

/// rn16 of magnitudes below 65536 (from 65520 on: infinity).
/// One addition rounds: in the binade of 2^13 times the value's own, the last place of a float is that of
/// fp16.
KVTIER_HD inline uint16_t Fp16FromFinite(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
  const uint32_t binade = std::bit_cast<uint32_t>(Fp16Binade(value));
  const uint32_t rounder = binade + (13u << 23);
  const uint32_t places = std::bit_cast<uint32_t>(magnitude + std::bit_cast<float>(rounder)) - rounder;
  const uint32_t exponent = (binade - ((127u - 14) << 23)) >> 13;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (exponent + places));
}

/// fp32 of Fp16FromFinite(value), by the same rounding (the sign of a zero is lost).
KVTIER_HD inline float RoundFiniteToFp16(float value) {
  const float rounder =
      Fp16Binade(value) * 12288.0f;  // 1.5 * 2^13: the sum stays in one binade for both signs
  return (value + rounder) - rounder;
}

/// rn16: round to nearest even; beyond the range infinity; NaN becomes a quiet NaN.
KVTIER_HD inline uint16_t Fp16FromFp32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= (127u + 16) << 23) return sign | kFp16Infinity;
  return Fp16FromFinite(value);
}

/// up16: the smallest fp16 that is not below `value`.
KVTIER_HD inline uint16_t Fp16UpFromFp32(float value) {
  const uint16_t nearest = Fp16FromFp32(value);
  if (!(Fp32FromFp16(nearest) < value)) return nearest;
  if (nearest == 0x8000) return 1;
  return static_cast<uint16_t>(nearest & 0x8000 ? nearest - 1 : nearest + 1);
}

KVTIER_HD inline float Fp32FromBf16(uint16_t brain) {
  return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16);
}

/// Round to nearest even. Not for NaN.
KVTIER_HD inline uint16_t Bf16FromFinite(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
/// Round to nearest even; NaN becomes a quiet NaN.
KVTIER_HD inline uint16_t Bf16FromFp32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x0040);
  return Bf16FromFinite(value);
}

/// The largest integer not above `value`, which is far inside the int32 range.
KVTIER_HD inline int32_t FloorToInt(float value) {
  const auto truncated = static_cast<int32_t>(value);
  return truncated - (value < static_cast<float>(truncated) ? 1 : 0);
}

/// Into the finite FP16 range. NaN, which only damaged bytes give, becomes the maximum: decoders are total.
KVTIER_HD inline float ClampToFp16(float value) {
  value = value < kFp16Max ? value : kFp16Max;
  return value > -kFp16Max ? value : -kFp16Max;
}

/// out16: what every decoder ends with.
KVTIER_HD inline uint16_t Fp16Out(float value) {
  return Fp16FromFinite(ClampToFp16(value));
}
/// The same for BF16 destinations: one rounding, of the same fp32.
KVTIER_HD inline uint16_t Bf16Out(float value) {
  return Bf16FromFinite(ClampToFp16(value));
}
/// fp32 of Fp16Out(value), up to the sign of a zero.
KVTIER_HD inline float RoundToFp16Out(float value) {
  return RoundFiniteToFp16(ClampToFp16(value));
}

}  // namespace kvtier
