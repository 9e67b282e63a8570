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

/// One tile, or the first `quarters` times 16 elements of it. Codes of quarters 2 and 3 are taken where they
/// are, 16 times too large; their scales are 16 times too small (both exactly).
template <typename Sink>
HWY_INLINE void DecodeKTile(const PackedCodes& codes, uint32_t slot, const __m512* scale,
                            const __m512* minimum, uint32_t quarters, std::byte* target) {
  const __m512i even = _mm512_permutexvar_epi8(TileToDwords(slot), codes.even);
  const __m512i odd = _mm512_permutexvar_epi8(TileToDwords(slot), codes.odd);
#pragma GCC unroll 4
  for (uint32_t q = 0; q < 4; ++q) {
    if (q >= quarters) break;
    const __m512i code = _mm512_and_si512(q % 2 == 0 ? even : odd, _mm512_set1_epi32(q < 2 ? 0x0f : 0xf0));
    // c * s is exact, so that this rounds once as c * s + m does.
    Sink::Put(target + q * Sink::kStepBytes, _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale[q], minimum[q]));
  }
}

template <typename Sink, uint32_t kTiles>
void DecodeK(const DequantizeArgs& args, uint32_t head, const RowSteps& steps, const PlaneReader& reader,
             const HeadRanges& ranges, const simd::RowTargets& targets) {
  const uint64_t row_bytes = steps.dim / 4, boost_row_bytes = args.shape.nb / 4u;
  const uint64_t first_row = PlaneRow(args.shape, head, 0);
  const uint8_t* const high_rows = args.in.k_high + first_row * row_bytes;
  const uint8_t* const low_rows = args.in.k_low != nullptr ? args.in.k_low + first_row * row_bytes : nullptr;
  const uint8_t* const boost_rows =
      ranges.has_boost() ? args.in.boost_low + first_row * boost_row_bytes : nullptr;
  const __mmask64 boost_bytes = FirstBytes(static_cast<uint32_t>(steps.rows * boost_row_bytes));
  // In registers where a row has one tile or two.
  constexpr uint32_t kVectors = (kTiles != kRagged ? kTiles : kSlots) * 4;
  __m512 scale[kVectors], minimum[kVectors];
  for (uint32_t i = 0; i < kVectors; ++i) {
    const __m512 part = _mm512_set1_ps(i % 4 < 2 ? 1.0f : 1.0f / 16);
    scale[i] = _mm512_mul_ps(_mm512_load_ps(ranges.scale + i * kLanes), part);
    minimum[i] = _mm512_load_ps(ranges.minimum + i * kLanes);
  }

  const auto read_codes = [&](uint32_t token) HWY_ATTR {
    const __m512i high = reader.Read<kTiles>(high_rows + token * row_bytes);
    __m512i low = _mm512_setzero_si512();
    if (low_rows != nullptr) {
      low = reader.Read<kTiles>(low_rows + token * row_bytes);
    } else if (boost_rows != nullptr) {
      const uint8_t* boost = boost_rows + token * boost_row_bytes;
      PrefetchAhead(boost);
      low = ranges.boost(_mm512_maskz_loadu_epi8(boost_bytes, boost));
    }
    return PackCodes(high, low);
  };
  StepSlots<kTiles, Sink::kElementBytes> slots(args.shape, steps, targets.K(head), targets.token_offset);
  uint32_t token = slots.first_token();
  if (token >= slots.tokens()) return;  // all rows are raw
  PackedCodes codes = read_codes(token);
  while (token < slots.tokens()) {
    const uint32_t next_token = token + steps.rows;
    const PackedCodes next_codes = read_codes(next_token < slots.tokens() ? next_token : token);
    slots.MoveTo(token);
#pragma GCC unroll 4
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t first = slots.Tile(slot) * 4;
      DecodeKTile<Sink>(codes, slot, scale + first, minimum + first, slots.Quarters(slot),
                        slots.Target(slot));
    }
    token = next_token;
    codes = next_codes;
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
