// The leaf of integer attention: four products of bytes into each int32. Compiled once per target.
#if defined(KVTIER_KERNELS_SIMD_DOT_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_DOT_BYTES_INL_H_
#undef KVTIER_KERNELS_SIMD_DOT_BYTES_INL_H_
#else
#define KVTIER_KERNELS_SIMD_DOT_BYTES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

// In place of HWY_BEFORE_NAMESPACE where DotBytes is used: Highway 1.0.3 looks for AVX512_VNNI when it
// chooses AVX3_DL, but does not tell the compiler of it.
#undef KVTIER_BEFORE_DOT_BYTES
#if HWY_TARGET == HWY_AVX3_DL
#define KVTIER_BEFORE_DOT_BYTES HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#elif defined(HWY_TARGET_STR)
#define KVTIER_BEFORE_DOT_BYTES HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
#else
#define KVTIER_BEFORE_DOT_BYTES
#endif

#if HWY_TARGET != HWY_SCALAR

KVTIER_BEFORE_DOT_BYTES
namespace kvtier {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using I32 = hn::ScalableTag<int32_t>;
using VI32 = hn::Vec<I32>;

/// sum[i] + the products of the unsigned bytes a[4i .. 4i + 3] with the signed bytes b[4i .. 4i + 3]. Each
/// pair of neighbouring products must stay within int16: codes of at most 15 times anything, or bytes below
/// 129.
HWY_INLINE VI32 DotBytes(VI32 sum, VI32 a, VI32 b) {
#if HWY_TARGET == HWY_AVX3_DL
  return VI32{_mm512_dpbusd_epi32(sum.raw, a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(a.raw, b.raw);
  return hn::Add(sum, VI32{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))});
#elif HWY_TARGET == HWY_AVX2
  const __m256i pairs = _mm256_maddubs_epi16(a.raw, b.raw);
  return hn::Add(sum, VI32{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))});
#else
  const I32 d;
  const hn::Repartition<int16_t, I32> d16;
  const hn::Repartition<uint16_t, I32> du16;
  const auto a16 = hn::BitCast(du16, a);
  const auto b16 = hn::BitCast(d16, b);
  const auto even =
      hn::Mul(hn::BitCast(d16, hn::And(a16, hn::Set(du16, 0xff))), hn::ShiftRight<8>(hn::ShiftLeft<8>(b16)));
  const auto odd = hn::Mul(hn::BitCast(d16, hn::ShiftRight<8>(a16)), hn::ShiftRight<8>(b16));
  const VI32 pairs = hn::BitCast(d, hn::Add(even, odd));
  return hn::Add(sum, hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(pairs)), hn::ShiftRight<16>(pairs)));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
