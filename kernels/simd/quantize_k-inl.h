// K of one head: ranges per channel, then codes and errors. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_QUANTIZE_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_QUANTIZE_K_INL_H_
#undef KVTIER_KERNELS_SIMD_QUANTIZE_K_INL_H_
#else
#define KVTIER_KERNELS_SIMD_QUANTIZE_K_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/quantize.h"
#include "kernels/simd/pack_tiles-inl.h"
#include "kernels/simd/source_vectors-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// Rows of a plane that are fetched before they are written.
inline constexpr uint32_t kPlaneRowsAhead = 16;

/// K of one head, from the first row that is not raw on.
struct KHead {
  const std::byte* source;  ///< [rows][dim], 16 bits each
  uint32_t rows;
  uint32_t dim;
  uint8_t* high;  ///< [rows][dim / 4]
  uint8_t* low;   ///< the same
  /// What the caller reads afterwards, as many bytes. It is fetched on the way, in order and evenly, so that
  /// neither waits for the other: a quarter while ranges are looked for, the rest with the codes.
  const std::byte* next;

  const std::byte* At(uint32_t row, uint32_t channel) const {
    return source + 2 * (size_t{row} * dim + channel);
  }
  /// With some rows of the tile from `channel` on: its share of what is next, and planes of all channels.
  HWY_INLINE void FetchAhead(uint32_t channel, uint32_t first, uint32_t count) const {
    constexpr size_t kRowShare = 2 * kTileCodes * 3 / 4;
    const size_t quarter = size_t{rows} * dim / 2;
    PrefetchNext(next + quarter + (channel / kTileCodes * rows + first) * kRowShare, count * kRowShare);
    if (channel != 0) return;
    const size_t ahead = size_t{first + kPlaneRowsAhead} * dim / 4;
    PrefetchPlane(high + ahead, count * dim / 4);
    PrefetchPlane(low + ahead, count * dim / 4);
  }
};

struct KScratch {
  QuantizeScratch ranges;
  uint16_t low[kMaxHeadDim], high[kMaxHeadDim];  ///< smallest and largest, in the source's bits
  /// Of a tile: whether a quotient leaves the codes, a decoded value the range of fp16, or a channel that is
  /// not constant has a scale of zero.
  bool clamps[kMaxHeadDim / kTileCodes];
  /// Of a tile: whether a scale is so small that fp16, which decoded values are rounded to, is coarse beside
  /// it.
  bool is_fine[kMaxHeadDim / kTileCodes];
};

/// 16-bit numbers with a sign bit as integers that order as they do (-0 below +0), and back.
template <class D16>
inline hn::Vec<D16> Ordered(D16 d16, hn::Vec<D16> bits) {
  return hn::Xor(bits, hn::And(hn::ShiftRight<15>(bits), hn::Set(d16, int16_t{0x7fff})));
}

/// Smallest and largest of `count` vectors of channels from `channel` on. Reads rows as they lie in memory.
template <uint32_t count, class D16>
inline void FindRanges(D16 d16, const KHead& head, uint32_t channel, KScratch& scratch) {
  constexpr uint32_t kLanes = hn::MaxLanes(D16());
  const auto load = [&](uint32_t row, uint32_t i) {
    return Ordered(d16, hn::LoadU(d16, reinterpret_cast<const int16_t*>(head.At(row, channel + i * kLanes))));
  };
  hn::Vec<D16> low[count], high[count];
  for (uint32_t i = 0; i < count; ++i) low[i] = high[i] = load(0, i);
  const std::byte* next = head.next + size_t{channel} * head.rows / 2;
  for (uint32_t row = 1; row < head.rows; ++row) {
    PrefetchNext(next + row * (count * kLanes / 2));
    for (uint32_t i = 0; i < count; ++i) {
      const auto value = load(row, i);
      low[i] = hn::Min(low[i], value);
      high[i] = hn::Max(high[i], value);
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t at = channel + i * kLanes;
    hn::StoreU(Ordered(d16, low[i]), d16, reinterpret_cast<int16_t*>(scratch.low + at));
    hn::StoreU(Ordered(d16, high[i]), d16, reinterpret_cast<int16_t*>(scratch.high + at));
  }
}

inline void FindRanges(const KHead& head, KScratch& scratch) {
  const Int16Tag d16;
  constexpr uint32_t kLanes = hn::MaxLanes(d16);
  uint32_t channel = 0;
  for (; channel + 4 * kLanes <= head.dim; channel += 4 * kLanes) FindRanges<4>(d16, head, channel, scratch);
  for (; channel + kLanes <= head.dim; channel += kLanes) FindRanges<1>(d16, head, channel, scratch);
  for (; channel < head.dim; channel += 8) FindRanges<1>(hn::Full128<int16_t>(), head, channel, scratch);
}

/// From smallest and largest to the stored (scale, minimum) and what codes in 0..steps are computed with.
template <class Source>
inline void FinishRanges(const Source& elements, uint32_t dim, float steps, uint8_t* k_scale, uint8_t* k_min,
                         KScratch& scratch) {
  const FloatTag df;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const auto zero = hn::Zero(df);
  constexpr float kFineScale = 0x1p-12f;
  for (bool& clamps : scratch.clamps) clamps = false;
  for (bool& is_fine : scratch.is_fine) is_fine = false;
  for (uint32_t c = 0; c < dim; c += kFloats) {
    const auto low = elements.Load(scratch.low + c), high = elements.Load(scratch.high + c);
    // A zero is stored as +0.
    const auto min_rounded = Fp16Bits(low);
    const auto min_bits =
        hn::IfThenZeroElse(hn::Eq(min_rounded, hn::Set(d16, uint16_t{0x8000})), min_rounded);
    const auto scale_bits = Fp16Bits(hn::Div(hn::Sub(high, low), hn::Set(df, steps)));
    const auto minimum = FromFp16Bits(min_bits), scale = FromFp16Bits(scale_bits);
    const auto inverse = hn::IfThenZeroElse(hn::Eq(scale, zero), hn::Div(hn::Set(df, 1.0f), scale));
    // Quotients grow with x: those of the ends tell whether any must be clamped.
    const auto first = hn::Round(hn::Mul(hn::Sub(low, minimum), inverse));
    const auto last = hn::Round(hn::Mul(hn::Sub(high, minimum), inverse));
    const auto end = hn::Max(hn::Abs(minimum), hn::Abs(hn::MulAdd(scale, hn::Set(df, steps), minimum)));
    const auto differs = hn::Or(hn::Ne(low, minimum), hn::Ne(high, minimum));
    const auto leaves =
        hn::Or(hn::Or(hn::Lt(first, zero), hn::Gt(last, hn::Set(df, steps))),
               hn::Or(hn::Gt(end, hn::Set(df, kFp16Max)), hn::And(hn::Eq(scale, zero), differs)));
    scratch.clamps[c / kTileCodes] |= !hn::AllFalse(df, leaves);
    const auto fine = hn::And(hn::Gt(scale, zero), hn::Lt(scale, hn::Set(df, kFineScale)));
    scratch.is_fine[c / kTileCodes] |= !hn::AllFalse(df, fine);
    hn::StoreU(scale_bits, d16, scratch.ranges.boost.scale + c);
    hn::StoreU(scale, df, scratch.ranges.scale + c);
    hn::StoreU(minimum, df, scratch.ranges.minimum + c);
    hn::StoreU(inverse, df, scratch.ranges.inverse + c);
    memcpy(k_scale + 2 * c, scratch.ranges.boost.scale + c, 2 * kFloats);
    uint16_t min_stored[kFloats];
    hn::StoreU(min_bits, d16, min_stored);
    memcpy(k_min + 2 * c, min_stored, sizeof min_stored);
  }
}

/// How many of scale[padded_dim] are above `bound`.
inline uint32_t CountAbove(const uint16_t* scale, uint32_t padded_dim, uint32_t bound) {
  const Int16Tag d16;
  size_t count = 0;
  for (uint32_t c = 0; c < padded_dim; c += hn::MaxLanes(d16)) {
    const auto value = hn::LoadU(d16, reinterpret_cast<const int16_t*>(scale + c));
    count += hn::CountTrue(d16, hn::Gt(value, hn::Set(d16, static_cast<int16_t>(bound))));
  }
  return static_cast<uint32_t>(count);
}

/// low_step[dim]: zero for the nb channels with the largest scales (ties: the lower channel), else the scale.
/// The nb-th largest scale is found bit by bit.
inline void MarkBoosted(uint32_t dim, uint32_t nb, QuantizeScratch& ranges) {
  memcpy(ranges.low_step, ranges.scale, dim * sizeof(float));
  if (nb == 0) return;
  const uint32_t padded_dim = (dim + 31) / 32 * 32;
  uint16_t* scale = ranges.boost.scale;
  for (uint32_t c = dim; c < padded_dim; ++c) scale[c] = 0;
  uint32_t bound = 0;
  for (uint32_t bit = 1u << 14; bit != 0; bit >>= 1) {
    if (CountAbove(scale, padded_dim, (bound | bit) - 1) >= nb) bound |= bit;
  }
  if (bound == 0) {  // fewer than nb scales that are not zero
    memset(ranges.low_step, 0, dim * sizeof(float));
    return;
  }
  if (CountAbove(scale, padded_dim, bound - 1) == nb) {  // no ties
    const FloatTag df;
    const auto least = hn::Set(df, Fp32FromFp16(static_cast<uint16_t>(bound)));
    for (uint32_t c = 0; c < dim; c += kFloats) {
      const auto step = hn::LoadU(df, ranges.scale + c);
      hn::StoreU(hn::IfThenElseZero(hn::Lt(step, least), step), df, ranges.low_step + c);
    }
    return;
  }
  uint32_t equal_left = nb - CountAbove(scale, padded_dim, bound);
  for (uint32_t c = 0; c < dim; ++c) {
    const bool is_boosted = scale[c] > bound || (scale[c] == bound && equal_left > 0);
    equal_left -= scale[c] == bound && equal_left > 0;
    ranges.low_step[c] = is_boosted ? 0.0f : ranges.low_step[c];
  }
}

/// Nearest integers, ties to even, of floats far inside the int32 range.
HWY_INLINE Int32s NearestInts(Floats v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return Int32s{_mm512_cvtps_epi32(v.raw)};
#elif HWY_TARGET == HWY_AVX2
  return Int32s{_mm256_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

/// Quotients less their codes, the nearest integers.
HWY_INLINE Floats OffNearest(Floats steps, Int32s codes) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  (void)codes;
  return Floats{_mm512_reduce_ps(steps.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
#else
  return hn::Sub(steps, hn::ConvertTo(FloatTag(), codes));
#endif
}

/// Low two bits l of each code as l - 1.5.
HWY_INLINE Floats LowBitsCentered(Int32s codes) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // The permutation looks at two bits.
  return Floats{_mm512_permutevar_ps(_mm512_set4_ps(1.5f, 0.5f, -0.5f, -1.5f), codes.raw)};
#elif HWY_TARGET == HWY_AVX2
  return Floats{
      _mm256_permutevar_ps(_mm256_setr_ps(-1.5f, -0.5f, 0.5f, 1.5f, -1.5f, -0.5f, 0.5f, 1.5f), codes.raw)};
#else
  const auto low = hn::And(codes, hn::Set(Int32Tag(), 3));
  return hn::Sub(hn::ConvertTo(FloatTag(), low), hn::Set(FloatTag(), 1.5f));
#endif
}

struct ErrorVectors {
  Floats square, int4, int2;

  ErrorVectors() : square(hn::Zero(FloatTag())), int4(square), int2(square) {}
  RowErrors Sum() const {
    const FloatTag df;
    return {.square = hn::GetLane(hn::SumOfLanes(df, square)),
            .int4 = hn::GetLane(hn::SumOfLanes(df, int4)),
            .int2 = hn::GetLane(hn::SumOfLanes(df, int2))};
  }
};

/// Constants of the channels of one vector.
struct KChannels {
  Floats minimum, scale, inverse, low_step;

  KChannels() {}  // NOLINT(modernize-use-equals-default): a defaulted one has no target
  KChannels(const QuantizeScratch& ranges, uint32_t channel) {
    const FloatTag df;
    minimum = hn::LoadU(df, ranges.minimum + channel);
    scale = hn::LoadU(df, ranges.scale + channel);
    inverse = hn::LoadU(df, ranges.inverse + channel);
    low_step = hn::LoadU(df, ranges.low_step + channel);
  }
};

template <bool kClamps>
HWY_INLINE Int32s QuantizeK(Floats x, const KChannels& channels, ErrorVectors& errors) {
  const FloatTag df;
  const auto above_minimum = hn::Sub(x, channels.minimum);
  auto steps = hn::Mul(above_minimum, channels.inverse);
  if constexpr (kClamps) steps = hn::Min(hn::Max(steps, hn::Zero(df)), hn::Set(df, 15.0f));
  const auto codes = NearestInts(steps);
  // The products are exact in fp32 (few bits each): one rounding, fused or not.
  const auto off_int4 = hn::NegMulAdd(hn::ConvertTo(df, codes), channels.scale, above_minimum);
  const auto off_int2 = hn::MulAdd(LowBitsCentered(codes), channels.low_step, off_int4);
  errors.square = hn::MulAdd(x, x, errors.square);
  errors.int4 = hn::MulAdd(off_int4, off_int4, errors.int4);
  errors.int2 = hn::MulAdd(off_int2, off_int2, errors.int2);
  return codes;
}

/// Clamped to the range of fp16 if they may leave it, and rounded to it: as a decoder writes it.
template <bool kClamps>
HWY_INLINE Floats AsDecoded(Floats v) {
  const auto most = hn::Set(FloatTag(), kFp16Max);
  if constexpr (kClamps) v = hn::Max(hn::Min(v, most), hn::Neg(most));
  return FromFp16Bits(Fp16Bits(v));
}

/// What brings a tile's values to the size of one, where fp32 holds their squares.
inline float ScaleToOne(const QuantizeScratch& ranges, uint32_t channel) {
  float largest = 0;
  for (uint32_t c = channel; c < channel + kTileCodes; ++c)
    largest = std::max(largest, std::fabs(ranges.minimum[c]) + 15 * ranges.scale[c]);
  // All zero as fp16: values are below 2^-25.
  return largest > 0 ? std::ldexp(1.0f, -std::ilogb(largest)) : 0x1p80f;
}

/// Errors of a tile of channels as ErrorMeasure::kDecoded has them: a tile whose values lie far from zero
/// beside their range cannot be measured on the grid. Reads the source once more, and writes nothing.
template <bool kClamps, class Source>
HWY_NOINLINE RowErrors MeasureDecodedKTile(const Source& elements, const KHead& head, uint32_t channel,
                                           const QuantizeScratch& ranges) {
  const FloatTag df;
  const float to_one = ScaleToOne(ranges, channel);
  const auto factor = hn::Set(df, to_one);
  RowErrorSum sum;
  for (uint32_t c = channel; c < channel + kTileCodes; c += kFloats) {
    const KChannels at(ranges, c);
    const auto boosted = hn::RebindMask(Int32Tag(), hn::Eq(at.low_step, hn::Zero(df)));
    const auto kept_bits = hn::IfThenElse(boosted, hn::Set(Int32Tag(), 0x0f), hn::Set(Int32Tag(), 0x0c));
    const auto minimum_int2 = hn::Add(hn::Mul(hn::Set(df, 1.5f), at.low_step), at.minimum);
    ErrorVectors errors;
    const auto add = [&](Floats off, Floats& squares) {
      const auto scaled = hn::Mul(off, factor);
      squares = hn::MulAdd(scaled, scaled, squares);
    };
    for (uint32_t row = 0; row < head.rows; ++row) {
      const auto x = elements.Load(head.At(row, c));
      auto steps = hn::Mul(hn::Sub(x, at.minimum), at.inverse);
      if constexpr (kClamps) steps = hn::Min(hn::Max(steps, hn::Zero(df)), hn::Set(df, 15.0f));
      const auto codes = NearestInts(steps);
      // The products are exact: one rounding, fused or not.
      const auto int4 = hn::MulAdd(hn::ConvertTo(df, codes), at.scale, at.minimum);
      const auto int2 = hn::MulAdd(hn::ConvertTo(df, hn::And(codes, kept_bits)), at.scale, minimum_int2);
      add(x, errors.square);
      add(hn::Sub(x, AsDecoded<kClamps>(int4)), errors.int4);
      add(hn::Sub(x, AsDecoded<kClamps>(int2)), errors.int2);
    }
    sum.Add(errors.Sum());
  }
  const RowErrors total = sum.Sum();
  const double weight = 1.0 / (double{to_one} * to_one);
  return {.square = total.square * weight, .int4 = total.int4 * weight, .int2 = total.int2 * weight};
}

/// One tile of channels from `channel` on, all rows.
template <class Source, bool kClamps>
inline RowErrors QuantizeKTile(const Source& elements, const KHead& head, uint32_t channel,
                               const QuantizeScratch& ranges) {
  constexpr uint32_t kQuarterVectors = kTileBytes / kFloats;  // of the 16 channels that are a quarter
  KChannels channels[4][kQuarterVectors];
  for (uint32_t k = 0; k < 4; ++k)
    for (uint32_t i = 0; i < kQuarterVectors; ++i)
      channels[k][i] = KChannels(ranges, channel + k * kTileBytes + i * kFloats);
  const Int16Tag d16;
  TileBatch batch;
  ErrorVectors errors;
  const size_t stride = head.dim / 4;
  for (uint32_t first = 0; first < head.rows; first += TileBatch::kTiles) {
    const uint32_t rows = head.rows - first < TileBatch::kTiles ? head.rows - first : TileBatch::kTiles;
    for (uint32_t row = 0; row < rows; ++row) {
      const std::byte* at = head.At(first + row, channel);
      if (row % 4 == 0) head.FetchAhead(channel, first + row, 4);
      for (uint32_t i = 0; i < kQuarterVectors; ++i) {
        Int32s codes[4];
        for (uint32_t k = 0; k < 4; ++k)
          codes[k] = QuantizeK<kClamps>(elements.Load(at + 2 * (k * kTileBytes + i * kFloats)),
                                        channels[k][i], errors);
        hn::Store(PackToBytes(hn::ReorderDemote2To(d16, codes[0], codes[1]),
                              hn::ReorderDemote2To(d16, codes[2], codes[3])),
                  ByteTag(), batch.codes[row] + i * 4 * kFloats);
      }
    }
    const size_t target = first * stride + channel / 4;
    PackTiles(batch, rows, head.high + target, head.low + target, stride);
  }
  return errors.Sum();
}

#if HWY_TARGET != HWY_AVX3 && HWY_TARGET != HWY_AVX3_DL
/// The same where none must be clamped.
template <class Source>
inline RowErrors QuantizeKTileInRange(const Source& elements, const KHead& head, uint32_t channel,
                                      const QuantizeScratch& ranges) {
  return QuantizeKTile<Source, false>(elements, head, channel, ranges);
}
#endif

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
