// Vectors of fp32 to rows of a destination. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_TARGET_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_TARGET_VECTORS_INL_H_
#undef KVTIER_KERNELS_SIMD_TARGET_VECTORS_INL_H_
#else
#define KVTIER_KERNELS_SIMD_TARGET_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/fp8.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/simd/pack_tiles-inl.h"
#include "kernels/simd/source_vectors-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// As ClampToFp16: NaN becomes the maximum.
HWY_INLINE Floats ClampVector(Floats v) {
  const FloatTag df;
  const auto limit = hn::Set(df, kFp16Max);
#if HWY_ARCH_X86
  v = hn::Min(v, limit);  // of two, one NaN, the instruction returns the second
  return hn::Max(v, hn::Neg(limit));
#else
  v = hn::IfThenElse(hn::Lt(v, limit), v, limit);
  return hn::IfThenElse(hn::Gt(v, hn::Neg(limit)), v, hn::Neg(limit));
#endif
}

/// BF16 by RNE, in the upper halves. Not for NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<FloatTag>> RoundToBf16(Floats v) {
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  return hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd);
}

/// Fp8FromFp32, lane by lane. Not for NaN.
template <uint32_t mantissa_bits, int32_t min_exponent>
HWY_INLINE Int32s Fp8Codes(Floats v, float largest) {
  constexpr int32_t kDropped = 23 - mantissa_bits, kMinBinade = (127 + min_exponent) << 23;
  const FloatTag df;
  const Int32Tag d32;
  const auto magnitude = hn::BitCast(d32, hn::Min(hn::Abs(v), hn::Set(df, largest)));
  const auto own_binade = hn::And(magnitude, hn::Set(d32, 0x7f800000));
  const auto binade = hn::Max(own_binade, hn::Set(d32, kMinBinade));
  const auto rounder = hn::Add(binade, hn::Set(d32, kDropped << 23));
  const auto sum = hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, rounder));
  const auto places = hn::Sub(hn::BitCast(d32, sum), rounder);
  const auto exponent = hn::ShiftRight<kDropped>(hn::Sub(binade, hn::Set(d32, kMinBinade)));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(d32, v)), hn::Set(d32, 0x80));
  return hn::Or(hn::Add(exponent, places), sign);
}

/// Puts in order what PackToBytes leaves block by block ([block][vector][bytes]), vector by vector.
///   `vectors` were packed into it, four of 32 bits or two of 16.
template <uint32_t vectors>
HWY_INLINE hn::Vec<ByteTag> InOrder(hn::Vec<ByteTag> packed) {
  const hn::ScalableTag<uint32_t> d32;
  alignas(64) static constexpr int32_t kOrders[2][3][16] = {
      {{0, 1, 2, 3}, {0, 1, 4, 5, 2, 3, 6, 7}, {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15}},
      {{0, 1, 2, 3}, {0, 4, 1, 5, 2, 6, 3, 7}, {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}}};
  const auto order = hn::SetTableIndices(d32, kOrders[vectors / 4][kFloats == 4 ? 0 : kFloats == 8 ? 1 : 2]);
  return hn::BitCast(ByteTag(), hn::TableLookupLanes(hn::BitCast(d32, packed), order));
}

/// Codes below 256, to bytes in order.
HWY_INLINE hn::Vec<ByteTag> BytesInOrder(const Int32s (&codes)[4]) {
  const Int16Tag d16;
  return InOrder<4>(PackToBytes(hn::ReorderDemote2To(d16, codes[0], codes[1]),
                                hn::ReorderDemote2To(d16, codes[2], codes[3])));
}

// Targets: one vector of fp32 as elements of a type, or as many as fill a vector of those, by one rounding.
// Not for NaN; fp16 is for what is inside its range.

struct Fp16Target {
  static constexpr uint32_t kBytes = 2;
  HWY_INLINE static auto One(Floats v) { return Fp16Bits(v); }
  HWY_INLINE static auto Whole(const Floats (&v)[2]) {
    return hn::Combine(hn::ScalableTag<uint16_t>(), Fp16Bits(v[1]), Fp16Bits(v[0]));
  }
};
struct Bf16Target {
  static constexpr uint32_t kBytes = 2;
  HWY_INLINE static auto One(Floats v) {
    // As signed numbers, so that the demotion to unsigned 16 bits keeps all values.
    const auto words = hn::ShiftRight<16>(RoundToBf16(v));
    return hn::DemoteTo(hn::Rebind<uint16_t, FloatTag>(), hn::BitCast(Int32Tag(), words));
  }
  HWY_INLINE static auto Whole(const Floats (&v)[2]) {
    const hn::ScalableTag<uint16_t> d16;
    return hn::ConcatOdd(d16, hn::BitCast(d16, RoundToBf16(v[1])), hn::BitCast(d16, RoundToBf16(v[0])));
  }
};
struct Fp32Target {
  static constexpr uint32_t kBytes = 4;
  HWY_INLINE static auto One(Floats v) { return v; }
  HWY_INLINE static auto Whole(const Floats (&v)[1]) { return v[0]; }
};
template <uint32_t mantissa_bits, int32_t min_exponent>
struct Fp8Target {
  static constexpr uint32_t kBytes = 1;
  Floats scale;
  float largest;

  HWY_INLINE Int32s Codes(Floats v) const {
    return Fp8Codes<mantissa_bits, min_exponent>(hn::Div(v, scale), largest);
  }
  HWY_INLINE auto One(Floats v) const { return hn::DemoteTo(hn::Rebind<uint8_t, FloatTag>(), Codes(v)); }
  HWY_INLINE auto Whole(const Floats (&v)[4]) const {
    return BytesInOrder({Codes(v[0]), Codes(v[1]), Codes(v[2]), Codes(v[3])});
  }
};

/// Calls store(target of `dtype`). FP8 is divided by `scale`.
template <class Store>
HWY_INLINE void WithTarget(DType dtype, float scale, const Store& store) {
  const Floats divisor = hn::Set(FloatTag(), scale);
  switch (dtype) {
    case DType::kFp16:
      return store(Fp16Target());
    case DType::kBf16:
      return store(Bf16Target());
    case DType::kE4m3:
      return store(Fp8Target<3, -6>{divisor, kE4m3Max});
    case DType::kE5m2:
      return store(Fp8Target<2, -14>{divisor, kE5m2Max});
    case DType::kFp32:
      return store(Fp32Target());
  }
}

template <class D, class V>
HWY_INLINE void StoreOrStream(V v, D d, hn::TFromD<D>* target, Stores stores) {
  if (stores == Stores::kStreaming) {
    hn::Stream(v, d, target);
  } else {
    hn::StoreU(v, d, target);
  }
}

/// Whether what begins here may be streamed: only where every store is aligned.
inline bool IsAligned(const void* row) {
  return reinterpret_cast<uintptr_t>(row) % (kFloats * sizeof(float)) == 0;
}

/// n values row.At(i), such as `to` takes, to neighbouring elements. n is a multiple of 16.
template <class Target, class Row>
HWY_INLINE void StoreRow(const Target& to, const Row& row, size_t n, std::byte* target, Stores stores) {
  constexpr uint32_t kVectors = sizeof(float) / Target::kBytes;
  using Element = hn::TFromV<decltype(to.One(row.At(0)))>;
  auto* elements = reinterpret_cast<Element*>(target);
  if (!IsAligned(target)) stores = Stores::kCached;
  size_t i = 0;
  for (; i + kVectors * kFloats <= n; i += kVectors * kFloats) {
    Floats values[kVectors];
    for (uint32_t part = 0; part < kVectors; ++part) values[part] = row.At(i + part * kFloats);
    StoreOrStream(to.Whole(values), hn::ScalableTag<Element>(), elements + i, stores);
  }
  for (; i < n; i += kFloats) hn::StoreU(to.One(row.At(i)), hn::Rebind<Element, FloatTag>(), elements + i);
}

/// The same to a row of a view, whose channels adjoin.
template <class Row>
HWY_INLINE void StoreRow(const Row& row, uint32_t dim, const KvLayerView& view, float scale,
                         std::byte* target) {
  WithTarget(view.dtype, scale,
             [&](const auto& to) HWY_ATTR { StoreRow(to, row, dim, target, view.stores); });
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
