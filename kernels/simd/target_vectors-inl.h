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

#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/simd/source_vectors-inl.h"

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

using HalfWords = hn::Vec<hn::Rebind<uint16_t, FloatTag>>;

/// BF16 by RNE. Not for NaN.
HWY_INLINE HalfWords Bf16Bits(Floats v) {
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd));
  // As signed numbers, so that the demotion to unsigned 16 bits keeps all values.
  return hn::DemoteTo(hn::Rebind<uint16_t, FloatTag>(), hn::BitCast(Int32Tag(), rounded));
}

struct Fp16Words {
  HWY_INLINE static HalfWords From(Floats v) { return Fp16Bits(v); }
};
struct Bf16Words {
  HWY_INLINE static HalfWords From(Floats v) { return Bf16Bits(v); }
};

template <class D, class V>
HWY_INLINE void StoreOrStream(V v, D d, hn::TFromD<D>* target, Stores stores) {
  if (stores == Stores::kStreaming) {
    hn::Stream(v, d, target);
  } else {
    hn::StoreU(v, d, target);
  }
}

/// Whether rows of this view may be streamed: only where every store is aligned.
inline bool IsAligned(const void* row) {
  return reinterpret_cast<uintptr_t>(row) % (kFloats * sizeof(float)) == 0;
}

/// dim values row.At(channel), clamped, to 16-bit words.
template <class Words, class Row>
HWY_INLINE void StoreWords(const Row& row, uint32_t dim, std::byte* target, Stores stores) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Rebind<uint16_t, FloatTag> half;
  auto* words = reinterpret_cast<uint16_t*>(target);
  uint32_t c = 0;
  for (; c + 2 * kFloats <= dim; c += 2 * kFloats) {
    const auto low = Words::From(ClampVector(row.At(c))),
               high = Words::From(ClampVector(row.At(c + kFloats)));
    StoreOrStream(hn::Combine(d16, high, low), d16, words + c, stores);
  }
  if (c < dim) hn::StoreU(Words::From(ClampVector(row.At(c))), half, words + c);
}

/// dim values row.At(channel), clamped, to a row of the view, whose channels adjoin.
template <class Row>
HWY_INLINE void StoreRow(const Row& row, uint32_t dim, DType dtype, std::byte* target, Stores stores) {
  if (!IsAligned(target)) stores = Stores::kCached;
  if (dtype == DType::kFp16) return StoreWords<Fp16Words>(row, dim, target, stores);
  if (dtype == DType::kBf16) return StoreWords<Bf16Words>(row, dim, target, stores);
  auto* floats = reinterpret_cast<float*>(target);
  for (uint32_t c = 0; c < dim; c += kFloats)
    StoreOrStream(ClampVector(row.At(c)), FloatTag(), floats + c, stores);
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
