// Source elements as vectors of fp32. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_SOURCE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_SOURCE_VECTORS_INL_H_
#undef KVTIER_KERNELS_SIMD_SOURCE_VECTORS_INL_H_
#else
#define KVTIER_KERNELS_SIMD_SOURCE_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Int32Tag = hn::RebindToSigned<FloatTag>;
using Int16Tag = hn::ScalableTag<int16_t>;
using ByteTag = hn::ScalableTag<uint8_t>;
using Floats = hn::Vec<FloatTag>;
using Int32s = hn::Vec<Int32Tag>;
using Int16s = hn::Vec<Int16Tag>;
inline constexpr uint32_t kFloats = hn::MaxLanes(FloatTag());

/// Fetches what is read some microseconds later: into the second cache, since the first is full of what is
/// worked on.
HWY_INLINE void PrefetchNext(const void* at) {
  __builtin_prefetch(at, 0, 2);
}

struct Fp16Source {
  static Floats Load(const void* at) {
    return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::float16_t, FloatTag>(),
                                               static_cast<const hwy::float16_t*>(at)));
  }
};
struct Bf16Source {
  static Floats Load(const void* at) {
    return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, FloatTag>(),
                                               static_cast<const hwy::bfloat16_t*>(at)));
  }
};

/// rn16, as bits.
inline hn::Vec<hn::Rebind<uint16_t, FloatTag>> Fp16Bits(Floats values) {
  return hn::BitCast(hn::Rebind<uint16_t, FloatTag>(),
                     hn::DemoteTo(hn::Rebind<hwy::float16_t, FloatTag>(), values));
}
inline Floats FromFp16Bits(hn::Vec<hn::Rebind<uint16_t, FloatTag>> bits) {
  return hn::PromoteTo(FloatTag(), hn::BitCast(hn::Rebind<hwy::float16_t, FloatTag>(), bits));
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
