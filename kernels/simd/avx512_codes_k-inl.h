// Codes of K, ready to become bits of fp32. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_CODES_K_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_CODES_K_INL_H_

#include <immintrin.h>

#include "kernels/simd/avx512_planes-inl.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

/// Four times a code is the third byte of the fp32 that is so much larger than the code.
inline constexpr float kCodeOrigin = 32.0f;

/// The codes of four tiles of K, a vector for every quarter: byte 16 i + j of quarter q has 4 times element
/// 16 q + j of tile i.
struct KCodes {
  __m512i quarter[4];
};

/// From both planes.
HWY_INLINE KCodes CodesOfPlanes(__m512i high, __m512i low) {
  const PackedCodes codes = PackCodes(high, low);
  const __m512i code = _mm512_set1_epi8(0x3c);
  return {{_mm512_and_si512(_mm512_slli_epi16(codes.even, 2), code),
           _mm512_and_si512(_mm512_slli_epi16(codes.odd, 2), code),
           _mm512_and_si512(_mm512_srli_epi16(codes.even, 2), code),
           _mm512_and_si512(_mm512_srli_epi16(codes.odd, 2), code)}};
}
/// From the high plane alone.
HWY_INLINE KCodes CodesOfHighPlane(__m512i high) {
  const __m512i field = _mm512_set1_epi8(0x30);
  return {{_mm512_and_si512(_mm512_slli_epi16(high, 4), field),
           _mm512_and_si512(_mm512_slli_epi16(high, 2), field), _mm512_and_si512(high, field),
           _mm512_and_si512(_mm512_srli_epi16(high, 2), field)}};
}

/// Adds the low bits of boosted channels. Those of byte p of quarter q are in byte source[q][p] of a step of
/// the boost plane; bit_offset[q][p] is where in its eight bytes of such bytes the two bits begin, less 2. A
/// channel that is not boosted takes a byte behind the step, a zero (there is none only if all channels are
/// boosted).
struct BoostGather {
  static constexpr uint8_t kZeroByte = 63;
  alignas(64) uint8_t source[4][64];
  alignas(64) uint8_t bit_offset[4][64];

  HWY_INLINE void AddTo(KCodes& codes, __m512i step) const {
    const __m512i low_bits = _mm512_set1_epi8(0x0c);
    for (int q = 0; q < 4; ++q) {
      const __m512i picked = _mm512_permutexvar_epi8(_mm512_load_si512(source[q]), step);
      const __m512i moved = _mm512_multishift_epi64_epi8(_mm512_load_si512(bit_offset[q]), picked);
      // code | (moved & low_bits)
      codes.quarter[q] = _mm512_ternarylogic_epi64(codes.quarter[q], moved, low_bits, 0xf8);
    }
  }
};

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
