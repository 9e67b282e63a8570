// kv8 from fp16 or BF16. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_
#undef KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_
#else
#define KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/quantize_kv8.h"
#include "kernels/simd/quantize_k-inl.h"
#include "kernels/simd/source_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// Rows of codes that are fetched before they are written.
inline constexpr uint32_t kRowsAhead = 4;

struct Kv8ErrorVectors {
  Floats square, error;

  Kv8ErrorVectors() : square(hn::Zero(FloatTag())), error(square) {}
  HWY_INLINE void Add(Floats x, Floats off) {
    square = hn::MulAdd(x, x, square);
    error = hn::MulAdd(off, off, error);
  }
  Kv8RowErrors Sum() const {
    const FloatTag df;
    return {.square = hn::GetLane(hn::SumOfLanes(df, square)),
            .error = hn::GetLane(hn::SumOfLanes(df, error))};
  }
};

/// out16, as fp32. Not for NaN.
template <bool kClamps>
HWY_INLINE Floats RoundToFp16(Floats v) {
  const auto limit = hn::Set(FloatTag(), kFp16Max);
  if constexpr (kClamps) v = hn::Min(hn::Max(v, hn::Neg(limit)), limit);
  return FromFp16Bits(Fp16Bits(v));
}

/// Codes below 256, to bytes in order.
template <uint32_t vectors>
HWY_INLINE void StoreBytes(const Int32s (&codes)[vectors], uint8_t* target) {
  const Int16Tag d16;
  if constexpr (vectors == 4) {
    const hn::ScalableTag<uint32_t> d32;
    // Packing leaves [block][vector][4]; out goes [vector][block][4].
    alignas(64) static constexpr int32_t kOrders[3][16] = {
        {0, 1, 2, 3}, {0, 4, 1, 5, 2, 6, 3, 7}, {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}};
    const auto order = hn::SetTableIndices(d32, kOrders[kFloats == 4 ? 0 : kFloats == 8 ? 1 : 2]);
    const auto packed = PackToBytes(hn::ReorderDemote2To(d16, codes[0], codes[1]),
                                    hn::ReorderDemote2To(d16, codes[2], codes[3]));
    const auto in_order = hn::TableLookupLanes(hn::BitCast(d32, packed), order);
    hn::StoreU(hn::BitCast(ByteTag(), in_order), ByteTag(), target);
  } else {
    const hn::Rebind<uint8_t, FloatTag> d8;
    for (uint32_t i = 0; i < vectors; ++i) hn::StoreU(hn::DemoteTo(d8, codes[i]), d8, target + i * kFloats);
  }
}

template <class Source, bool kClamps>
HWY_INLINE Int32s QuantizeKv8K(Floats x, const KChannels& channels, Kv8ErrorVectors& errors) {
  const FloatTag df;
  auto steps = hn::Mul(hn::Sub(x, channels.minimum), channels.inverse);
  if constexpr (kClamps) steps = hn::Min(hn::Max(steps, hn::Zero(df)), hn::Set(df, internal::kKv8KSteps));
  const auto codes = NearestInts(steps);
  const auto decoded = hn::MulAdd(hn::ConvertTo(df, codes), channels.scale, channels.minimum);
  errors.Add(x, hn::Sub(x, RoundToFp16<kClamps>(decoded)));
  return codes;
}

/// `vectors` vectors of channels from `channel` on, all rows.
template <class Source, bool kClamps, uint32_t vectors>
inline void QuantizeKv8Columns(const KHead& head, uint32_t channel, const QuantizeScratch& ranges,
                               Kv8ErrorVectors& errors) {
  KChannels channels[vectors];
  for (uint32_t i = 0; i < vectors; ++i) channels[i] = KChannels(ranges, channel + i * kFloats);
  Kv8ErrorVectors sums = errors;
  for (uint32_t row = 0; row < head.rows; ++row) {
    const std::byte* at = head.At(row, channel);
    PrefetchNext(head.next + (at - head.source));
    PrefetchNext(head.next + (at - head.source) + 64);
    hwy::Prefetch(head.high + size_t{row + kRowsAhead} * head.dim + channel);
    Int32s codes[vectors];
    for (uint32_t i = 0; i < vectors; ++i)
      codes[i] = QuantizeKv8K<Source, kClamps>(Source::Load(at + 2 * i * kFloats), channels[i], sums);
    StoreBytes(codes, head.high + size_t{row} * head.dim + channel);
  }
  errors = sums;
}

template <class Source, bool kClamps>
inline Kv8RowErrors QuantizeKv8K(const KHead& head, const QuantizeScratch& ranges) {
  Kv8ErrorVectors errors;
  uint32_t channel = 0;
  for (; channel + 4 * kFloats <= head.dim; channel += 4 * kFloats)
    QuantizeKv8Columns<Source, kClamps, 4>(head, channel, ranges, errors);
  for (; channel < head.dim; channel += kFloats)
    QuantizeKv8Columns<Source, kClamps, 1>(head, channel, ranges, errors);
  return errors.Sum();
}

/// Largest magnitude among dim 16-bit numbers, as bits.
HWY_INLINE uint16_t LargestMagnitude(const std::byte* source, uint32_t dim) {
  const Int16Tag d16;
  const hn::Full128<int16_t> d8;
  constexpr uint32_t kLanes = hn::MaxLanes(d16);
  const auto* bits = reinterpret_cast<const int16_t*>(source);
  auto largest = hn::Zero(d16);
  uint32_t c = 0;
  for (; c + kLanes <= dim; c += kLanes)
    largest = hn::Max(largest, hn::And(hn::LoadU(d16, bits + c), hn::Set(d16, int16_t{0x7fff})));
  alignas(64) int16_t lanes[kLanes];
  hn::Store(largest, d16, lanes);
  auto rest = hn::Load(d8, lanes);
  for (uint32_t lane = 8; lane < kLanes; lane += 8) rest = hn::Max(rest, hn::Load(d8, lanes + lane));
  for (; c < dim; c += 8)
    rest = hn::Max(rest, hn::And(hn::LoadU(d8, bits + c), hn::Set(d8, int16_t{0x7fff})));
  return static_cast<uint16_t>(hn::GetLane(hn::MaxOfLanes(d8, rest)));
}

/// Sixteen rows of V between the two passes. E4M3 numbers times 2^-8 are fp16 numbers of the same bits.
struct Kv8VBatch {
  static constexpr uint32_t kRows = 16;
  uint16_t largest[kRows];
  uint16_t scale_bits[kRows];
  float scale[kRows];    ///< times 2^8
  float inverse[kRows];  ///< times 2^-8
  bool clamps;           ///< whether a decoded value may leave the range of fp16
};

/// Scales up16(largest / 448).
template <class Source>
inline void FindKv8Scales(Kv8VBatch& batch) {
  const FloatTag df;
  const hn::Rebind<uint16_t, FloatTag> d16;
  batch.clamps = false;
  for (uint32_t i = 0; i < Kv8VBatch::kRows; i += kFloats) {
    const auto largest = Source::Load(batch.largest + i);
    const auto wanted = hn::Div(largest, hn::Set(df, kE4m3Max));
    const auto nearest = Fp16Bits(wanted);
    const auto one_up = FromFp16Bits(hn::Add(nearest, hn::Set(d16, uint16_t{1})));
    const auto scale = hn::IfThenElse(hn::Lt(FromFp16Bits(nearest), wanted), one_up, FromFp16Bits(nearest));
    hn::StoreU(Fp16Bits(scale), d16, batch.scale_bits + i);
    hn::StoreU(hn::Mul(scale, hn::Set(df, 256.0f)), df, batch.scale + i);
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(df)), hn::Div(hn::Set(df, 1.0f / 256), scale)), df,
               batch.inverse + i);
    batch.clamps |= !hn::AllFalse(df, hn::Gt(hn::Mul(scale, hn::Set(df, kE4m3Max)), hn::Set(df, kFp16Max)));
  }
}

/// 2^-8 of x / scale, rounded to E4M3. The scale leaves nothing above 448.
///   One correction of x * inverse gives what a division would wherever it matters: x has at most 11
///   significant bits, as scale has, so that a quotient is a tie of E4M3 (then it comes out exact) or at
///   least 2^-16 of itself away from one.
HWY_INLINE Floats DivideToE4m3(Floats x, Floats scale, Floats inverse) {
  const FloatTag df;
  const auto estimate = hn::Mul(x, inverse);
  const auto quotient = hn::MulAdd(hn::NegMulAdd(estimate, scale, x), inverse, estimate);
  // One addition rounds (RoundFiniteToFp16): three bits below the leading one, and none below 2^-17.
  const auto exponent = hn::And(quotient, hn::BitCast(df, hn::Set(Int32Tag(), 0x7f800000)));
  const auto binade = hn::Max(exponent, hn::Set(df, 1.0f / 16384));
  const auto rounder = hn::Set(df, 1572864.0f);  // 1.5 * 2^20
  return hn::NegMulAdd(binade, rounder, hn::MulAdd(binade, rounder, quotient));
}

/// One vector of V: returns its codes as the upper bytes of fp16, one bit too low.
template <class Source, bool kClamps>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, FloatTag>> QuantizeE4m3(const std::byte* source, Floats scale,
                                                                Floats inverse, Kv8ErrorVectors& errors) {
  const auto x = Source::Load(source);
  const auto rounded = DivideToE4m3(x, scale, inverse);
  errors.Add(x, hn::Sub(x, RoundToFp16<kClamps>(hn::Mul(rounded, scale))));
  return Fp16Bits(hn::CopySign(rounded, x));
}

/// From such fp16 bits to codes: the sign and seven bits below the one that is always zero.
template <class D>
HWY_INLINE void StoreE4m3(D d16, hn::Vec<D> bits, uint8_t* target) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::Rebind<int16_t, D> signed16;
  const auto sign = hn::And(hn::ShiftRight<8>(bits), hn::Set(d16, uint16_t{0x80}));
  const auto code = hn::Or(hn::And(hn::ShiftRight<7>(bits), hn::Set(d16, uint16_t{0x7f})), sign);
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(signed16, code)), d8, target);
}

template <class Source, bool kClamps>
HWY_INLINE void QuantizeKv8VRow(const std::byte* source, uint32_t dim, float row_scale, float row_inverse,
                                uint8_t* codes, Kv8ErrorVectors& errors) {
  const FloatTag df;
  const hn::ScalableTag<uint16_t> d16;
  const auto scale = hn::Set(df, row_scale), inverse = hn::Set(df, row_inverse);
  uint32_t c = 0;
  for (; c + 2 * kFloats <= dim; c += 2 * kFloats) {
    const auto low = QuantizeE4m3<Source, kClamps>(source + 2 * c, scale, inverse, errors);
    const auto high = QuantizeE4m3<Source, kClamps>(source + 2 * (c + kFloats), scale, inverse, errors);
    StoreE4m3(d16, hn::Combine(d16, high, low), codes + c);
  }
  if (c < dim) {
    StoreE4m3(hn::Rebind<uint16_t, FloatTag>(),
              QuantizeE4m3<Source, kClamps>(source + 2 * c, scale, inverse, errors), codes + c);
  }
}

/// V of one head, from the first row that is not raw on.
struct Kv8VHead {
  const std::byte* source;
  uint32_t rows;
  uint32_t dim;
  uint8_t* scale;  ///< fp16
  uint8_t* codes;
  const std::byte* next;  ///< what the caller reads afterwards: is fetched on the way
};

template <class Source, bool kClamps>
HWY_NOINLINE void QuantizeKv8VRows(const Kv8VHead& head, uint32_t first, uint32_t rows,
                                   const Kv8VBatch& batch, Kv8ErrorVectors& errors) {
  Kv8ErrorVectors sums = errors;
  for (uint32_t row = 0; row < rows; ++row) {
    const size_t at = size_t{first + row} * head.dim;
    uint8_t* codes = head.codes + at;
    for (uint32_t c = 0; c < head.dim; c += 64) {
      hwy::Prefetch(codes + kRowsAhead * head.dim + c);
      PrefetchNext(head.next + 2 * (at + c));
      PrefetchNext(head.next + 2 * (at + c) + 64);
    }
    // A row of zeros has scale 0 and codes 0, whatever the signs.
    if (batch.scale_bits[row] == 0) {
      memset(codes, 0, head.dim);
    } else {
      QuantizeKv8VRow<Source, kClamps>(head.source + 2 * at, head.dim, batch.scale[row], batch.inverse[row],
                                       codes, sums);
    }
  }
  errors = sums;
}

template <class Source>
inline Kv8RowErrors QuantizeKv8V(const Kv8VHead& head) {
  Kv8VBatch batch = {};
  Kv8ErrorVectors errors;
  for (uint32_t first = 0; first < head.rows; first += Kv8VBatch::kRows) {
    const uint32_t rows = head.rows - first < Kv8VBatch::kRows ? head.rows - first : Kv8VBatch::kRows;
    for (uint32_t row = 0; row < rows; ++row)
      batch.largest[row] = LargestMagnitude(head.source + 2 * size_t{first + row} * head.dim, head.dim);
    FindKv8Scales<Source>(batch);
    memcpy(head.scale + 2 * first, batch.scale_bits, 2 * rows);
    if (batch.clamps) {
      QuantizeKv8VRows<Source, true>(head, first, rows, batch, errors);
    } else {
      QuantizeKv8VRows<Source, false>(head, first, rows, batch, errors);
    }
  }
  return errors.Sum();
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
