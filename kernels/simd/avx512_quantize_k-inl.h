// K tiles on AVX-512, four rows at a time, where no quotient leaves the codes. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_K_INL_H_
#undef KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_K_INL_H_
#else
#define KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_K_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/avx512_pack-inl.h"
#include "kernels/simd/quantize_k-inl.h"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// Sums of one tile by channel, in units of its scale: of the squared distance of quotients to their code,
/// and to the middle of its INT2 cell.
struct KTileSums {
  Floats square, int4[4], int2[4];

  KTileSums() : square(hn::Zero(FloatTag())) {
    for (uint32_t k = 0; k < 4; ++k) int4[k] = int2[k] = square;
  }
  RowErrors Sum(const QuantizeScratch& ranges, uint32_t channel) const {
    const FloatTag df;
    ErrorVectors errors;
    errors.square = square;
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t at = channel + k * kTileBytes;
      const auto scale = hn::LoadU(df, ranges.scale + at);
      // A boosted channel has all bits at INT2 too.
      const auto boosted = hn::Eq(hn::LoadU(df, ranges.low_step + at), hn::Zero(df));
      const auto weight = hn::Mul(scale, scale);
      errors.int4 = hn::MulAdd(int4[k], weight, errors.int4);
      errors.int2 = hn::MulAdd(hn::IfThenElse(boosted, int4[k], int2[k]), weight, errors.int2);
    }
    return errors.Sum();
  }
};

/// Four rows of 64 channels to planes, 16 channels of all rows at a time. Of a last group only the first
/// `rows` count; the others are any rows of the head.
template <bool kWhole, class Source>
HWY_INLINE void QuantizeFourKRows(const Source& elements, const std::byte* const (&source)[4], uint32_t rows,
                                  const Floats (&minimum)[4], const Floats (&inverse)[4], KTileSums& sums,
                                  FourTiles& quarters) {
  for (uint32_t k = 0; k < 4; ++k) {
    __m512i codes[4];
    for (uint32_t row = 0; row < 4; ++row) {
      const Floats x = elements.Load(source[row] + 2 * k * kTileBytes);
      const Floats steps = hn::Mul(hn::Sub(x, minimum[k]), inverse[k]);
      codes[row] = _mm512_cvtps_epi32(steps.raw);
      if (!kWhole && row >= rows) continue;
      const Floats off_int4 = OffNearest(steps, Int32s{codes[row]});
      const Floats off_int2 = hn::Add(off_int4, LowBitsCentered(Int32s{codes[row]}));
      sums.square = hn::MulAdd(x, x, sums.square);
      sums.int4[k] = hn::MulAdd(off_int4, off_int4, sums.int4[k]);
      sums.int2[k] = hn::MulAdd(off_int2, off_int2, sums.int2[k]);
    }
    quarters.codes[k] =
        _mm512_packus_epi16(_mm512_packs_epi32(codes[0], codes[1]), _mm512_packs_epi32(codes[2], codes[3]));
  }
}

/// One tile of channels from `channel` on, all rows.
template <class Source>
HWY_NOINLINE RowErrors QuantizeKTileInRange(const Source& elements, const KHead& head, uint32_t channel,
                                            const QuantizeScratch& ranges) {
  const FloatTag df;
  Floats minimum[4], inverse[4];
  for (uint32_t k = 0; k < 4; ++k) {
    minimum[k] = hn::LoadU(df, ranges.minimum + channel + k * kTileBytes);
    inverse[k] = hn::LoadU(df, ranges.inverse + channel + k * kTileBytes);
  }
  KTileSums sums;
  const size_t stride = head.dim / 4;
  for (uint32_t first = 0; first < head.rows; first += 4) {
    const uint32_t rows = head.rows - first < 4 ? head.rows - first : 4;
    const size_t target = first * stride + channel / 4;
    const std::byte* source[4];
    for (uint32_t row = 0; row < 4; ++row)
      source[row] = head.At(first + (row < rows ? row : rows - 1), channel);
    head.FetchAhead(channel, first, 4);
    FourTiles quarters;
    if (rows == 4) {
      QuantizeFourKRows<true>(elements, source, rows, minimum, inverse, sums, quarters);
    } else {
      QuantizeFourKRows<false>(elements, source, rows, minimum, inverse, sums, quarters);
    }
    // Dword 4 b + row of a plane has the four bytes from 4 b on of that row.
    const __m512i by_row = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    StoreFourRows(_mm512_permutexvar_epi32(by_row, quarters.High()), rows, head.high + target, stride);
    StoreFourRows(_mm512_permutexvar_epi32(by_row, quarters.Low()), rows, head.low + target, stride);
  }
  return sums.Sum(ranges, channel);
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
