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
    hwy::Prefetch(head.next + (at - head.source));
    hwy::Prefetch(head.next + (at - head.source) + 64);
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

/// The largest magnitude among dim 16-bit numbers, as a float in every lane.
template <class Source>
HWY_INLINE Floats LargestMagnitude(const std::byte* source, uint32_t dim) {
  const auto largest_from = [&](auto d16, uint32_t first, uint32_t end) {
    auto largest = hn::Zero(d16);
    for (uint32_t c = first; c < end; c += static_cast<uint32_t>(hn::MaxLanes(d16))) {
      const auto bits = hn::LoadU(d16, reinterpret_cast<const int16_t*>(source + 2 * c));
      largest = hn::Max(largest, hn::And(bits, hn::Set(d16, int16_t{0x7fff})));
    }
    return static_cast<uint16_t>(hn::GetLane(hn::MaxOfLanes(d16, largest)));
  };
  const uint32_t whole = dim / hn::MaxLanes(Int16Tag()) * hn::MaxLanes(Int16Tag());
  const uint16_t first = largest_from(Int16Tag(), 0, whole);
  const uint16_t rest = whole < dim ? largest_from(hn::Full128<int16_t>(), whole, dim) : uint16_t{0};
  uint16_t words[kFloats];
  for (uint16_t& word : words) word = first > rest ? first : rest;
  return Source::Load(words);
}

/// The scale of a V row with this largest magnitude, up16(largest / 448), in every lane.
HWY_INLINE Floats Kv8Scale(Floats largest, uint16_t& bits) {
  const FloatTag df;
  const auto wanted = hn::Div(largest, hn::Set(df, kE4m3Max));
  const auto nearest = Fp16Bits(wanted);
  const bool is_below = !hn::AllFalse(df, hn::Lt(FromFp16Bits(nearest), wanted));
  bits = static_cast<uint16_t>(hn::GetLane(nearest) + (is_below ? 1 : 0));
  return FromFp16Bits(hn::Set(hn::Rebind<uint16_t, FloatTag>(), bits));
}

/// 2^-8 of a row's scale and what goes with it: E4M3 numbers times 2^-8 are fp16 numbers of the same bits.
struct Kv8RowScale {
  Floats scale;    ///< times 2^8
  Floats inverse;  ///< times 2^-8

  explicit Kv8RowScale(Floats s)
      : scale(hn::Mul(s, hn::Set(FloatTag(), 256.0f))),
        inverse(hn::Div(hn::Set(FloatTag(), 1.0f / 256), s)) {}
};

/// 2^-8 of x / scale, rounded to E4M3. The scale leaves nothing above 448.
///   One correction of x * inverse gives what a division would wherever it matters: x has at most 11
///   significant bits, as scale has, so that a quotient is a tie of E4M3 (then it comes out exact) or at
///   least 2^-16 of itself away from one.
HWY_INLINE Floats DivideToE4m3(Floats x, const Kv8RowScale& row) {
  const FloatTag df;
  const auto estimate = hn::Mul(x, row.inverse);
  const auto quotient = hn::MulAdd(hn::NegMulAdd(estimate, row.scale, x), row.inverse, estimate);
  // One addition rounds (RoundFiniteToFp16): three bits below the leading one, and none below 2^-17.
  const auto exponent = hn::And(quotient, hn::BitCast(df, hn::Set(Int32Tag(), 0x7f800000)));
  const auto binade = hn::Max(exponent, hn::Set(df, 1.0f / 16384));
  const auto rounder = hn::Set(df, 1572864.0f);  // 1.5 * 2^20
  return hn::NegMulAdd(binade, rounder, hn::MulAdd(binade, rounder, quotient));
}

/// Codes of such numbers, with the signs of x.
template <uint32_t vectors>
HWY_INLINE void StoreE4m3(const Floats (&x)[vectors], const Floats (&rounded)[vectors], uint8_t* target) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<int16_t, FloatTag> signed16;
  const hn::Rebind<uint8_t, FloatTag> d8;
  for (uint32_t i = 0; i < vectors; ++i) {
    const auto bits = Fp16Bits(hn::CopySign(rounded[i], x[i]));
    const auto sign = hn::And(hn::ShiftRight<8>(bits), hn::Set(d16, uint16_t{0x80}));
    const auto code = hn::Or(hn::And(hn::ShiftRight<7>(bits), hn::Set(d16, uint16_t{0x7f})), sign);
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(signed16, code)), d8, target + i * kFloats);
  }
}

/// One row of V: returns the scale's bits.
template <class Source>
HWY_INLINE uint16_t QuantizeKv8V(const std::byte* source, uint32_t dim, uint8_t* codes,
                                 Kv8ErrorVectors& errors) {
  uint16_t bits;
  const auto scale = Kv8Scale(LargestMagnitude<Source>(source, dim), bits);
  if (bits == 0) {  // all zero
    memset(codes, 0, dim);
    return 0;
  }
  const Kv8RowScale row(scale);
  for (uint32_t c = 0; c < dim; c += kFloats) {
    const Floats x[1] = {Source::Load(source + 2 * c)};
    const Floats rounded[1] = {DivideToE4m3(x[0], row)};
    errors.Add(x[0], hn::Sub(x[0], RoundToFp16<true>(hn::Mul(rounded[0], row.scale))));
    StoreE4m3(x, rounded, codes + c);
  }
  return bits;
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
