// V of kv8 from elements of 16 bits. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_KV8_ENCODE_V_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_KV8_ENCODE_V_INL_H_
#undef KVTIER_KERNELS_SIMD_KV8_ENCODE_V_INL_H_
#else
#define KVTIER_KERNELS_SIMD_KV8_ENCODE_V_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/simd/kv8_encode-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// V of one head, from the first row that is not raw on.
struct Kv8VHead {
  const std::byte* source;
  uint32_t rows;
  uint32_t dim;
  uint8_t* scale;  ///< fp16
  uint8_t* codes;
  const std::byte* next;  ///< what the caller reads afterwards: is fetched on the way
};

/// The least of each lane over all blocks of 128 bits.
HWY_INLINE hn::Vec128<uint16_t> LeastOfBlocks(hn::Vec128<uint16_t> v) {
  return v;
}
template <class Vector>
HWY_INLINE hn::Vec128<uint16_t> LeastOfBlocks(Vector v) {
  const hn::Half<hn::DFromV<Vector>> half;
  return LeastOfBlocks(hn::Min(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
}

/// 0x7fff less the largest magnitude among dim 16-bit numbers.
HWY_INLINE uint16_t LeastBelowLargest(const std::byte* source, uint32_t dim) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Full128<uint16_t> d128;
  constexpr uint32_t kLanes = hn::MaxLanes(d16);
  const auto* bits = reinterpret_cast<const uint16_t*>(source);
  const auto below = [&](auto d, uint32_t c) {
    return hn::AndNot(hn::LoadU(d, bits + c), hn::Set(d, uint16_t{0x7fff}));
  };
  auto least = hn::Set(d16, uint16_t{0x7fff});
  uint32_t c = 0;
  for (; c + kLanes <= dim; c += kLanes) least = hn::Min(least, below(d16, c));
  auto rest = LeastOfBlocks(least);
  for (; c < dim; c += 8) rest = hn::Min(rest, below(d128, c));
  return hn::GetLane(hn::MinOfLanes(d128, rest));
}

/// What sixteen rows of V are divided by.
struct Kv8VScales {
  static constexpr uint32_t kRows = 16;
  uint16_t bits[kRows];
  float scale[kRows];         ///< times 2^8
  float inverse[kRows];       ///< of `scale`, 13 bits of it: a product with x is exact
  float inverse_rest[kRows];  ///< the rest of it
  bool clamps;                ///< whether a decoded value may leave the range of fp16
};

/// Scales up16(largest / 448).
template <class Source>
HWY_INLINE void FindKv8Scales(const Source& elements, const uint16_t (&largest)[Kv8VScales::kRows],
                              Kv8VScales& scales) {
  const FloatTag df;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const auto one = hn::Set(df, 1.0f);
  scales.clamps = false;
  for (uint32_t i = 0; i < Kv8VScales::kRows; i += kFloats) {
    const auto wanted = hn::Div(elements.Load(largest + i), hn::Set(df, kE4m3Max));
    const auto nearest = Fp16Bits(wanted);
    const auto one_up = FromFp16Bits(hn::Add(nearest, hn::Set(d16, uint16_t{1})));
    const auto stored = hn::IfThenElse(hn::Lt(FromFp16Bits(nearest), wanted), one_up, FromFp16Bits(nearest));
    hn::StoreU(Fp16Bits(stored), d16, scales.bits + i);
    const auto scale = hn::Mul(stored, hn::Set(df, 256.0f));
    const auto inverse = hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(df)), hn::Div(one, scale));
    const auto upper = hn::And(inverse, hn::BitCast(df, hn::Set(Int32Tag(), ~0x7ff)));
    hn::StoreU(scale, df, scales.scale + i);
    hn::StoreU(upper, df, scales.inverse + i);
    hn::StoreU(hn::Mul(hn::NegMulAdd(upper, scale, one), inverse), df, scales.inverse_rest + i);
    scales.clamps |= !hn::AllFalse(df, hn::Gt(hn::Mul(stored, hn::Set(df, kE4m3Max)), hn::Set(df, kFp16Max)));
  }
}

/// Scales of `rows` rows from row `first` on.
template <class Source>
inline void FindKv8Scales(const Source& elements, const Kv8VHead& head, uint32_t first, uint32_t rows,
                          Kv8VScales& scales) {
  uint16_t largest[Kv8VScales::kRows] = {};
  for (uint32_t row = 0; row < rows; ++row) {
    const std::byte* source = head.source + 2 * size_t{first + row} * head.dim;
    largest[row] = static_cast<uint16_t>(0x7fff - LeastBelowLargest(source, head.dim));
  }
  FindKv8Scales(elements, largest, scales);
  memcpy(head.scale + 2 * first, scales.bits, 2 * rows);
}

/// max(|v|, least).
HWY_INLINE Floats MagnitudeAtLeast(Floats v, Floats least) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return Floats{_mm512_range_ps(v.raw, least.raw, 0x0b)};  // the larger magnitude, its sign cleared
#else
  return hn::Max(hn::Abs(v), least);
#endif
}

/// What the numbers of one row of V are divided by.
struct Kv8VDivisor {
  Floats scale, inverse, inverse_rest;
  Floats divisor;  ///< scale, or 1 where that is 0

  Kv8VDivisor(const Kv8VScales& scales, uint32_t row)
      : scale(hn::Set(FloatTag(), scales.scale[row])),
        inverse(hn::Set(FloatTag(), scales.inverse[row])),
        inverse_rest(hn::Set(FloatTag(), scales.inverse_rest[row])),
        divisor(hn::Set(FloatTag(), scales.bits[row] == 0 ? 1.0f : scales.scale[row])) {}

  /// x / scale, rounded to E4M3 times 2^-8 (zeros lose their sign). The scale leaves nothing above 448.
  ///   The quotient is what a division would give wherever it matters, and one where x was multiplied by a
  ///   scale of its own before. Otherwise x has at most 11 significant bits, as
  ///   scale has: so a quotient is a tie of E4M3 or a power of two (then it comes out exact, since it is off
  ///   by less than 2^-34 of itself before its only rounding), or at least 2^-16 of itself away from one.
  ///   One addition rounds it: in the binade of 2^20 times its own the last place of a float is three bits
  ///   below its leading one, and never below 2^-17. In the case of a tie, what it is added to is even there.
  ///   The sum stays in that binade for both signs (1.5: see RoundFiniteToFp16), but for powers of two, which
  ///   are exact.
  template <class Source>
  HWY_INLINE Floats DivideToE4m3(Floats x) const {
    const FloatTag df;
    constexpr bool kIsScaled = std::is_same_v<Source, ScaledFp16Source>;
    const auto quotient = kIsScaled ? hn::Div(x, divisor) : hn::MulAdd(x, inverse_rest, hn::Mul(x, inverse));
    auto magnitude = MagnitudeAtLeast(quotient, hn::Set(df, 1.5f / 16384));
    if constexpr (kIsScaled) {  // whose quotients may lie anywhere: 1.5 times the power of two
      const auto exponent = hn::And(magnitude, hn::BitCast(df, hn::Set(Int32Tag(), 0x7f800000)));
      magnitude = hn::Mul(exponent, hn::Set(df, 1.5f));
    }
    const auto binades_up = hn::Set(df, 1048576.0f);  // 2^20
    return hn::NegMulAdd(magnitude, binades_up, hn::MulAdd(magnitude, binades_up, quotient));
  }
};

/// One row of numbers, as fp16 that are E4M3 numbers times 2^-8.
template <class Source, bool kClamps>
HWY_INLINE void RoundToE4m3(const Source& elements, const std::byte* source, uint32_t dim,
                            const Kv8VDivisor& divisor, uint16_t* rounded, Kv8ErrorVectors& errors) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  for (uint32_t c = 0; c < dim; c += kFloats) {
    const auto x = elements.Load(source + 2 * c);
    const auto number = divisor.template DivideToE4m3<Source>(x);
    if constexpr (kClamps) {
      errors.Add(x, hn::Sub(x, ClampToFp16Range(hn::Mul(number, divisor.scale))));
    } else {
      errors.Add(x, hn::NegMulAdd(number, divisor.scale, x));
    }
    hn::Store(Fp16Bits(number), d16, rounded + c);
  }
}

/// Codes of such numbers: the seven bits below the one that is always zero, and the sign of the source.
template <class D>
HWY_INLINE hn::Vec<D> E4m3Codes(D d16, const uint16_t* rounded, const std::byte* source) {
  const auto number = hn::LoadU(d16, rounded);
  const auto x = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(source));
  const auto low_bits = hn::Set(d16, uint16_t{0x7f});
  return hn::Or(hn::And(hn::ShiftRight<7>(number), low_bits), hn::AndNot(low_bits, hn::ShiftRight<8>(x)));
}

HWY_INLINE void StoreE4m3Codes(const uint16_t* rounded, const std::byte* source, uint32_t count,
                               uint8_t* codes) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Full128<uint16_t> d128;
  constexpr uint32_t kWords = hn::MaxLanes(d16);
  uint32_t i = 0;
  for (; i + 2 * kWords <= count; i += 2 * kWords) {
    const auto first = E4m3Codes(d16, rounded + i, source + 2 * i);
    const auto second = E4m3Codes(d16, rounded + i + kWords, source + 2 * (i + kWords));
    hn::StoreU(InOrder<2>(PackToBytes(hn::BitCast(Int16Tag(), first), hn::BitCast(Int16Tag(), second))),
               ByteTag(), codes + i);
  }
  for (; i < count; i += 8) {
    const auto last = hn::BitCast(hn::Full128<int16_t>(), E4m3Codes(d128, rounded + i, source + 2 * i));
    hn::StoreU(hn::DemoteTo(hn::Full64<uint8_t>(), last), hn::Full64<uint8_t>(), codes + i);
  }
}

template <class Source, bool kClamps>
HWY_NOINLINE void QuantizeKv8VRows(const Source& elements, const Kv8VHead& head, uint32_t first,
                                   uint32_t rows, const Kv8VScales& scales, uint16_t* rounded,
                                   Kv8ErrorVectors& errors) {
  Kv8ErrorVectors sums = errors;
  const size_t start = size_t{first} * head.dim;
  for (uint32_t row = 0; row < rows; ++row) {
    const size_t at = start + size_t{row} * head.dim;
    for (uint32_t c = 0; c < head.dim; c += 64) {
      hwy::Prefetch(head.codes + at + c);
      PrefetchNext(head.next + 2 * (at + c));
      PrefetchNext(head.next + 2 * (at + c) + 64);
    }
    RoundToE4m3<Source, kClamps>(elements, head.source + 2 * at, head.dim, Kv8VDivisor(scales, row),
                                 rounded + size_t{row} * head.dim, sums);
  }
  StoreE4m3Codes(rounded, head.source + 2 * start, rows * head.dim, head.codes + start);
  // A row of zeros has scale 0 and codes 0, whatever the signs.
  for (uint32_t row = 0; row < rows; ++row)
    if (scales.bits[row] == 0) memset(head.codes + start + size_t{row} * head.dim, 0, head.dim);
  errors = sums;
}

/// Sixteen rows at a time. Their scales are found while those before are divided: a long way of few
/// instructions.
template <class Source>
inline Kv8RowErrors QuantizeKv8V(const Source& elements, const Kv8VHead& head) {
  constexpr uint32_t kRows = Kv8VScales::kRows;
  alignas(64) uint16_t rounded[kRows * kMaxHeadDim];
  Kv8VScales scales[2];
  Kv8ErrorVectors errors;
  const auto rows_from = [&](uint32_t first) {
    return head.rows - first < kRows ? head.rows - first : kRows;
  };
  FindKv8Scales(elements, head, 0, rows_from(0), scales[0]);
  for (uint32_t first = 0; first < head.rows; first += kRows) {
    const Kv8VScales& own = scales[first / kRows % 2];
    const uint32_t next = first + kRows;
    if (next < head.rows) FindKv8Scales(elements, head, next, rows_from(next), scales[next / kRows % 2]);
    if (own.clamps) {
      QuantizeKv8VRows<Source, true>(elements, head, first, rows_from(first), own, rounded, errors);
    } else {
      QuantizeKv8VRows<Source, false>(elements, head, first, rows_from(first), own, rounded, errors);
    }
  }
  return errors.Sum();
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
