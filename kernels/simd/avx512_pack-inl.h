// Codes of four tiles to the rows of two planes on AVX-512. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_AVX512_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_AVX512_PACK_INL_H_
#undef KVTIER_KERNELS_SIMD_AVX512_PACK_INL_H_
#else
#define KVTIER_KERNELS_SIMD_AVX512_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/tile.h"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// mask ? a : b, bit by bit.
HWY_INLINE __m512i SelectBits(uint32_t mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int32_t>(mask)), a, b, 0xca);
}

/// codes[k]: the codes 16 k to 16 k + 15 of four tiles, one a byte, each k in the same order. Only their low
/// four bits count.
struct FourTiles {
  __m512i codes[4];

  HWY_INLINE __m512i Even() const {
    return SelectBits(0x0f0f0f0fu, codes[0], _mm512_slli_epi32(codes[2], 4));
  }
  HWY_INLINE __m512i Odd() const { return SelectBits(0x0f0f0f0fu, codes[1], _mm512_slli_epi32(codes[3], 4)); }
  HWY_INLINE __m512i High() const { return SelectBits(0x33333333u, _mm512_srli_epi32(Even(), 2), Odd()); }
  HWY_INLINE __m512i Low() const { return SelectBits(0x33333333u, Even(), _mm512_slli_epi32(Odd(), 2)); }
};

/// The first `rows` of four rows of 16 bytes, `stride` apart.
HWY_INLINE void StoreFourRows(__m512i plane, uint32_t rows, uint8_t* target, size_t stride) {
  if (rows == 4 && stride == kTileBytes) return _mm512_storeu_si512(target, plane);
  const auto at = [&](uint32_t row) { return reinterpret_cast<__m128i*>(target + row * stride); };
  _mm_storeu_si128(at(0), _mm512_castsi512_si128(plane));
  if (rows > 1) _mm_storeu_si128(at(1), _mm512_extracti32x4_epi32(plane, 1));
  if (rows > 2) _mm_storeu_si128(at(2), _mm512_extracti32x4_epi32(plane, 2));
  if (rows > 3) _mm_storeu_si128(at(3), _mm512_extracti32x4_epi32(plane, 3));
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
