// kv8 to rows of fp16, BF16 or FP32. Compiled once per target.

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
#include "kernels/simd/source_vectors-inl.h"
#include "kernels/simd/target_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// kFloats bytes as floats.
HWY_INLINE Floats BytesToFloats(const uint8_t* bytes) {
  const hn::Rebind<uint8_t, FloatTag> d8;
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(Int32Tag(), hn::LoadU(d8, bytes)));
}

/// kFloats E4M3 numbers. Seven bits moved to where fp16 has them stand for 2^-8 of the value; a NaN is made
/// one.
HWY_INLINE Floats E4m3ToFloats(const uint8_t* bytes) {
  const FloatTag df;
  const hn::Rebind<uint8_t, FloatTag> d8;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<int16_t, FloatTag> signed16;
  const auto raised = hn::ShiftLeft<8>(hn::PromoteTo(d16, hn::LoadU(d8, bytes)));
  const auto moved = hn::And(hn::BitCast(d16, hn::ShiftRight<1>(hn::BitCast(signed16, raised))),
                             hn::Set(d16, uint16_t{0xbfff}));
  const auto value = hn::Mul(FromFp16Bits(moved), hn::Set(df, 256.0f));
  const auto is_nan = hn::Gt(hn::Abs(value), hn::Set(df, kE4m3Max));
  return hn::IfThenElse(is_nan, hn::NaN(df), value);
}

struct KRow {
  const uint8_t* codes;
  const float* scale;
  const float* minimum;

  HWY_INLINE Floats At(uint32_t channel) const {
    const FloatTag df;
    return hn::MulAdd(BytesToFloats(codes + channel), hn::LoadU(df, scale + channel),
                      hn::LoadU(df, minimum + channel));
  }
};

struct VRow {
  const uint8_t* codes;
  float scale;

  HWY_INLINE Floats At(uint32_t channel) const {
    return hn::Mul(E4m3ToFloats(codes + channel), hn::Set(FloatTag(), scale));
  }
};

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
