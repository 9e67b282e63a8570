#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"

// Tiles of the plane family (codecs/FORMAT.md): 64 codes, or the fewer codes that end a row. A tile of `n`
// codes (a multiple of 4) takes n/4 bytes of a 2-bit plane; byte j holds the codes j, j + n/4, j + n/2 and j
// + 3n/4.

namespace kvtier {

inline constexpr uint32_t kTileCodes = 64;
inline constexpr uint32_t kTileBytes = kTileCodes / 4;

/// Which two bits of a code a plane holds.
inline constexpr uint32_t kHighShift = 2, kLowShift = 0;

/// Codes of the tile that begins at `first` in a row of n.
KVTIER_HD constexpr uint32_t TileCodes(uint32_t n, uint32_t first) {
  return n - first < kTileCodes ? n - first : kTileCodes;
}

inline constexpr uint64_t kTwoBitsPerByte = 0x0303030303030303;

KVTIER_HD inline uint64_t Load64(const void* source) {
  uint64_t value;
  memcpy(&value, source, sizeof value);
  return value;
}
KVTIER_HD inline void Store64(void* target, uint64_t value) {
  memcpy(target, &value, sizeof value);
}

/// plane[n/4] = bits `shift`, `shift` + 1 of codes[n]. Full tiles go eight bytes at a time; bytes do not mix,
/// so byte order does not matter. Total. Any thread.
template <uint32_t shift>
KVTIER_HD inline void PackTile(const uint8_t* codes, uint32_t n, uint8_t* plane) {
  if (n == kTileCodes) {
    for (uint32_t j = 0; j < kTileBytes; j += 8) {
      uint64_t packed = 0;
      for (uint32_t k = 0; k < 4; ++k)
        packed |= (Load64(codes + j + k * kTileBytes) >> shift & kTwoBitsPerByte) << 2 * k;
      Store64(plane + j, packed);
    }
    return;
  }
  const uint32_t quarter = n / 4;
  for (uint32_t j = 0; j < quarter; ++j) {
    plane[j] = static_cast<uint8_t>((codes[j] >> shift & 3) | (codes[j + quarter] >> shift & 3) << 2 |
                                    (codes[j + 2 * quarter] >> shift & 3) << 4 |
                                    (codes[j + 3 * quarter] >> shift & 3) << 6);
  }
}

/// codes[n] |= plane[n/4] at bit `shift`. Total. Any thread.
template <uint32_t shift>
KVTIER_HD inline void UnpackTile(const uint8_t* plane, uint32_t n, uint8_t* codes) {
  if (n == kTileCodes) {
    for (uint32_t j = 0; j < kTileBytes; j += 8) {
      const uint64_t packed = Load64(plane + j);
      for (uint32_t k = 0; k < 4; ++k) {
        uint8_t* target = codes + j + k * kTileBytes;
        Store64(target, Load64(target) | (packed >> 2 * k & kTwoBitsPerByte) << shift);
      }
    }
    return;
  }
  const uint32_t quarter = n / 4;
  for (uint32_t k = 0; k < 4; ++k)
    for (uint32_t j = 0; j < quarter; ++j)
      codes[j + k * quarter] |= static_cast<uint8_t>((plane[j] >> 2 * k & 3) << shift);
}

/// Butterflies (a + b, a - b) of m[64] at one distance.
template <uint32_t distance, typename Value>
KVTIER_HD inline void Butterflies(Value* m) {
  for (uint32_t start = 0; start < 64; start += 2 * distance) {
    for (uint32_t i = start; i < start + distance; ++i) {
      const Value a = m[i], b = m[i + distance];
      m[i] = a + b;
      m[i + distance] = a - b;
    }
  }
}

/// The first three stages, on eight neighbours in registers.
template <typename Value>
KVTIER_HD inline void ButterfliesOfEight(Value* m) {
  const Value a0 = m[0] + m[1], a1 = m[0] - m[1], a2 = m[2] + m[3], a3 = m[2] - m[3];
  const Value a4 = m[4] + m[5], a5 = m[4] - m[5], a6 = m[6] + m[7], a7 = m[6] - m[7];
  const Value b0 = a0 + a2, b1 = a1 + a3, b2 = a0 - a2, b3 = a1 - a3;
  const Value b4 = a4 + a6, b5 = a5 + a7, b6 = a4 - a6, b7 = a5 - a7;
  m[0] = b0 + b4;
  m[1] = b1 + b5;
  m[2] = b2 + b6;
  m[3] = b3 + b7;
  m[4] = b0 - b4;
  m[5] = b1 - b5;
  m[6] = b2 - b6;
  m[7] = b3 - b7;
}

/// m = H64 m in Sylvester order, unscaled, distances 1, 2, 4 .. 32 in this order (it matters in fp32).
template <typename Value>
KVTIER_HD inline void Hadamard64(Value* m) {
  for (uint32_t i = 0; i < 64; i += 8) ButterfliesOfEight(m + i);
  Butterflies<8>(m);
  Butterflies<16>(m);
  Butterflies<32>(m);
}

/// Every full group of 64 of v[n] becomes H64 v / 8; a smaller last group stays.
KVTIER_HD inline void RotateGroups(float* v, uint32_t n) {
  for (uint32_t first = 0; first + kTileCodes <= n; first += kTileCodes) {
    Hadamard64(v + first);
    for (uint32_t i = first; i < first + kTileCodes; ++i) v[i] *= 0.125f;
  }
}

/// The grid of V: code c stands for (2c + offset) / 2 steps. INT2 codes come as h << 2.
inline constexpr int32_t kVOffsetInt4 = -15, kVOffsetInt2 = -12;

/// The scale that a byte of the V scales stands for.
KVTIER_HD inline float VScale(uint8_t scale_byte) {
  return Fp32FromFp16(static_cast<uint16_t>(scale_byte << 7));
}

/// One V group to fp32, before out16.
///   codes [n], n <= 64      scale_byte: the fp16 scale s has the bits scale_byte << 7; 0 decodes to +0
/// Groups of 64 are rotated back: H64 z on integers (within +-960, exact), one product with s/16; or left
/// rotated: z * (s/2). Smaller groups were never rotated.
KVTIER_HD inline void DequantizeVGroup(const uint8_t* codes, uint32_t n, int32_t offset, uint8_t scale_byte,
                                       VForm form, float* out) {
  if (scale_byte == 0) {
    for (uint32_t i = 0; i < n; ++i) out[i] = 0.0f;
    return;
  }
  int32_t z[kTileCodes];
  for (uint32_t i = 0; i < n; ++i) z[i] = 2 * codes[i] + offset;
  const float scale = Fp32FromFp16(static_cast<uint16_t>(scale_byte << 7));
  if (n < kTileCodes || form == VForm::kRotated) {
    for (uint32_t i = 0; i < n; ++i) out[i] = static_cast<float>(z[i]) * (scale / 2);
    return;
  }
  Hadamard64(z);
  for (uint32_t i = 0; i < kTileCodes; ++i) out[i] = static_cast<float>(z[i]) * (scale / 16);
}

/// One K value to fp32, before out16: fmaf(c, s, m). c * s is exact in fp32 (at most 4 + 11 significant
/// bits), so this rounds once and equals the fused operation without needing it.
/// INT2 is the same with code 4h and minimum m' = fmaf(1.5, s, m): fmaf(4h, s, m') = fmaf(h, 4s, m').
KVTIER_HD inline float DequantizeK(uint8_t code, float scale, float minimum) {
  return static_cast<float>(code) * scale + minimum;
}
KVTIER_HD inline float KMinimumInt2(float scale, float minimum) {
  return 1.5f * scale + minimum;
}

}  // namespace kvtier
