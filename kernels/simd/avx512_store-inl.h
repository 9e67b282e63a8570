// How sixteen fp32 become sixteen elements in memory. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_STORE_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_STORE_INL_H_

#include <immintrin.h>

#include "kernels/layout.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

inline constexpr uint32_t kLanes = 16;

template <Stores kStores>
HWY_INLINE void StoreVector(std::byte* target, __m512i value) {
  if constexpr (kStores == Stores::kStreaming) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target), value);
  } else {
    _mm512_storeu_si512(target, value);
  }
}
template <Stores kStores>
HWY_INLINE void StoreHalfVector(std::byte* target, __m256i value) {
  if constexpr (kStores == Stores::kStreaming) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target), value);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), value);
  }
}

/// Values inside the FP16 range as 16-bit elements, rounded to nearest even.
template <DType kType>
HWY_INLINE __m256i Narrow(__m512 values) {
  if constexpr (kType == DType::kFp16) {
    return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  } else {
    static_assert(kType == DType::kBf16);
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
}

/// Where decoded values go: their type and how they are stored.
template <DType kTypeOf, Stores kStoresOf>
struct Sink {
  static constexpr DType kType = kTypeOf;
  static constexpr Stores kStores = kStoresOf;
  static constexpr uint32_t kElementBytes = kType == DType::kFp32 ? 4 : 2;
  static constexpr uint32_t kStepBytes = kLanes * kElementBytes;

  /// Sixteen values inside the FP16 range.
  static HWY_INLINE void Put(std::byte* target, __m512 values) {
    if constexpr (kType == DType::kFp32) {
      StoreVector<kStores>(target, _mm512_castps_si512(values));
    } else {
      StoreHalfVector<kStores>(target, Narrow<kType>(values));
    }
  }
};

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
