// kv8 to rows of a destination. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_KV8_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_KV8_DECODE_INL_H_
#undef KVTIER_KERNELS_SIMD_KV8_DECODE_INL_H_
#else
#define KVTIER_KERNELS_SIMD_KV8_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/dequantize_kv8.h"
#include "kernels/simd/rotate-inl.h"
#include "kernels/simd/source_vectors-inl.h"
#include "kernels/simd/target_vectors-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// kFloats bytes as floats.
HWY_INLINE Floats BytesToFloats(const uint8_t* bytes) {
  const hn::Rebind<uint8_t, FloatTag> d8;
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(Int32Tag(), hn::LoadU(d8, bytes)));
}

struct KRow {
  const uint8_t* codes;
  const float* scale;
  const float* minimum;

  HWY_INLINE Floats At(size_t channel) const {
    const FloatTag df;
    return ClampVector(hn::MulAdd(BytesToFloats(codes + channel), hn::LoadU(df, scale + channel),
                                  hn::LoadU(df, minimum + channel)));
  }
};

struct VRow {
  const uint8_t* codes;
  float scale;

  HWY_INLINE Floats Value(size_t channel) const {
    const FloatTag df;
    const Floats number = E4m3Source::Load(codes + channel);
    const auto is_nan = hn::Gt(hn::Abs(number), hn::Set(df, kE4m3Max / E4m3Source::kFactor));
    const Floats value = hn::Mul(number, hn::Set(df, scale * E4m3Source::kFactor));
    return hn::IfThenElse(is_nan, hn::NaN(df), value);
  }
  HWY_INLINE Floats At(size_t channel) const { return ClampVector(Value(channel)); }
};

/// A row of V in rotated form.
class RotatedVRow {
 public:
  RotatedVRow(const VRow& row, uint32_t dim) {
    for (uint32_t c = 0; c < dim; c += kFloats) hn::StoreU(row.Value(c), FloatTag(), values_ + c);
    RotateRow(values_, dim);
  }
  HWY_INLINE Floats At(size_t channel) const { return ClampVector(hn::LoadU(FloatTag(), values_ + channel)); }

 private:
  alignas(64) float values_[kMaxHeadDim];
};

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
