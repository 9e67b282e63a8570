// K of the plane family, four tiles at a time. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_DECODE_K_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_DECODE_K_INL_H_

#include <immintrin.h>

#include "kernels/simd/avx512_decode_head-inl.h"
#include "kernels/simd/avx512_planes-inl.h"
#include "kernels/simd/avx512_store-inl.h"
#include "kernels/simd/decode_layer.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

/// One tile, or the first `quarters` times 16 elements of it.
template <typename Sink>
HWY_INLINE void DecodeKTile(const PackedCodes& codes, int slot, const float* scale, const float* minimum,
                            uint32_t quarters, std::byte* target) {
  const __m512 values = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i even = _mm512_permutexvar_epi8(TileToDwords(slot), codes.even);
  const __m512i odd = _mm512_permutexvar_epi8(TileToDwords(slot), codes.odd);
  const __m512i quarter_codes[4] = {even, odd, _mm512_srli_epi32(even, 4), _mm512_srli_epi32(odd, 4)};
#pragma GCC unroll 4
  for (uint32_t q = 0; q < 4; ++q) {
    if (q >= quarters) break;
    // The permutation looks at the low four bits of an index: a conversion without a mask.
    const __m512 code = _mm512_permutexvar_ps(quarter_codes[q], values);
    // c * s is exact, so that this rounds once as c * s + m does.
    const __m512 value =
        _mm512_fmadd_ps(code, _mm512_load_ps(scale + q * kLanes), _mm512_load_ps(minimum + q * kLanes));
    Sink::Put(target + q * Sink::kStepBytes, value);
  }
}

template <typename Sink, RowShape kShape>
void DecodeK(const DequantizeArgs& args, uint32_t head, const RowSteps& steps, const PlaneReader& reader,
             const HeadRanges& ranges, const simd::RowTargets& targets) {
  const BlockShape& shape = args.shape;
  const uint64_t first_row = PlaneRow(shape, head, 0);
  const uint32_t row_bytes = steps.dim / 4, boost_row_bytes = shape.nb / 4;
  const __mmask64 boost_bytes = FirstBytes(steps.rows * boost_row_bytes);
  StepSlots slots(steps);
  alignas(64) std::byte nowhere[kMaxHeadDim * Sink::kElementBytes];

  for (uint32_t token = shape.nraw / steps.rows * steps.rows; token < shape.tokens; token += steps.rows) {
    const uint64_t row = first_row + token;
    const __m512i high = reader.Read(args.in.k_high + row * row_bytes);
    __m512i low = _mm512_setzero_si512();
    if (args.in.k_low != nullptr) {
      low = reader.Read(args.in.k_low + row * row_bytes);
    } else if (ranges.has_boost()) {
      low = ranges.boost(_mm512_maskz_loadu_epi8(boost_bytes, args.in.boost_low + row * boost_row_bytes));
    }
    const PackedCodes codes = PackCodes(high, low);
    for (uint32_t i = 0, slot = 0; i < steps.rows; ++i) {
      const bool is_wanted = token + i >= shape.nraw && token + i < shape.tokens;
      std::byte* target = is_wanted ? targets.K(head, token + i) : nowhere;
      for (uint32_t tile = 0; tile < steps.tiles; ++tile, ++slot)
        slots.target[slot] = target + tile * kTileCodes * Sink::kElementBytes;
    }
#pragma GCC unroll 4
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t first = slots.tile[slot] * kTileCodes;
      DecodeKTile<Sink>(codes, static_cast<int>(slot), ranges.scale + first, ranges.minimum + first,
                        kShape == RowShape::kEven ? 4 : slots.quarters[slot], slots.target[slot]);
    }
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
