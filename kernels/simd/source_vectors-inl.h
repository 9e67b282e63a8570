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

#if HWY_TARGET != HWY_SCALAR

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
/// The same for some bytes, in the order in which they lie: the CPU's own prefetcher follows.
HWY_INLINE void PrefetchNext(const std::byte* at, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += 64) PrefetchNext(at + offset);
}
/// Fetches what is written next.
HWY_INLINE void PrefetchPlane(const uint8_t* at, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(at + offset, 0, 3);
}

/// rn16, as bits.
inline hn::Vec<hn::Rebind<uint16_t, FloatTag>> Fp16Bits(Floats values) {
  return hn::BitCast(hn::Rebind<uint16_t, FloatTag>(),
                     hn::DemoteTo(hn::Rebind<hwy::float16_t, FloatTag>(), values));
}
inline Floats FromFp16Bits(hn::Vec<hn::Rebind<uint16_t, FloatTag>> bits) {
  return hn::PromoteTo(FloatTag(), hn::BitCast(hn::Rebind<hwy::float16_t, FloatTag>(), bits));
}

// Sources: kFloats elements of a type, at any address, as fp32 divided by kFactor. FP8 comes without its
// scale.

struct Fp16Source {
  static constexpr uint32_t kBytes = 2;
  static constexpr float kFactor = 1;
  HWY_INLINE static Floats Load(const void* at) {
    return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::float16_t, FloatTag>(),
                                               static_cast<const hwy::float16_t*>(at)));
  }
};
/// FP8 numbers that were widened to fp16 (WidenFp8), times their scale.
struct ScaledFp16Source {
  float scale;

  HWY_INLINE Floats Load(const void* at) const {
    return hn::Mul(Fp16Source::Load(at), hn::Set(FloatTag(), scale));
  }
};
struct Bf16Source {
  static constexpr uint32_t kBytes = 2;
  static constexpr float kFactor = 1;
  HWY_INLINE static Floats Load(const void* at) {
    return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, FloatTag>(),
                                               static_cast<const hwy::bfloat16_t*>(at)));
  }
};
struct E4m3Source {
  static constexpr uint32_t kBytes = 1;
  /// Seven bits moved to where fp16 has them stand for 2^-8 of the value.
  static constexpr float kFactor = 256;
  /// A NaN looks like 480.
  HWY_INLINE static Floats Load(const void* at) {
    const hn::Rebind<int8_t, FloatTag> d8;
    const hn::Rebind<int16_t, FloatTag> d16;
    const auto codes = hn::PromoteTo(d16, hn::LoadU(d8, static_cast<const int8_t*>(at)));
    const auto moved = hn::And(hn::ShiftLeft<7>(codes), hn::Set(d16, static_cast<int16_t>(0xbf80)));
    return FromFp16Bits(hn::BitCast(hn::Rebind<uint16_t, FloatTag>(), moved));
  }
};
struct E5m2Source {
  static constexpr uint32_t kBytes = 1;
  static constexpr float kFactor = 1;
  HWY_INLINE static Floats Load(const void* at) {
    const hn::Rebind<uint8_t, FloatTag> d8;
    const hn::Rebind<uint16_t, FloatTag> d16;
    return FromFp16Bits(hn::ShiftLeft<8>(hn::PromoteTo(d16, hn::LoadU(d8, static_cast<const uint8_t*>(at)))));
  }
};
struct Fp32Source {
  static constexpr uint32_t kBytes = 4;
  static constexpr float kFactor = 1;
  HWY_INLINE static Floats Load(const void* at) {
    return hn::LoadU(FloatTag(), static_cast<const float*>(at));
  }
};

/// n 16-bit elements, a multiple of 16, as LoadTile gives them.
template <class Source>
HWY_INLINE void LoadRow(const Source& elements, const std::byte* at, uint32_t n, float* row) {
  for (uint32_t i = 0; i < n; i += kFloats) hn::StoreU(elements.Load(at + 2 * i), FloatTag(), row + i);
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
