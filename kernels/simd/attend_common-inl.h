// What both SIMD attention kernels use. Compiled once per target: the guard toggles.
#if defined(KVTIER_KERNELS_SIMD_ATTEND_COMMON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_ATTEND_COMMON_INL_H_
#undef KVTIER_KERNELS_SIMD_ATTEND_COMMON_INL_H_
#else
#define KVTIER_KERNELS_SIMD_ATTEND_COMMON_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>

#include "kernels/attend.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

/// Query heads that are done together: what the registers hold sums for.
inline constexpr uint32_t kQueryChunk = 8;
/// Rows of scores are padded to this many tokens, with probability 0.
inline constexpr uint32_t kTokenPad = 16;

constexpr uint32_t RoundUp(uint32_t n, uint32_t to) {
  return (n + to - 1) / to * to;
}
/// Chunks are padded to a size that has a kernel.
constexpr uint32_t PaddedChunk(uint32_t queries) {
  return queries <= 2 ? queries : queries <= 4 ? 4 : 8;
}

/// Fetches the lines of some ranges into the second cache, a few at a time, while something else is computed.
class Prefetcher {
 public:
  void Add(const void* start, uint64_t bytes) {
    if (ranges_ == kRangesMax || bytes == 0) return;
    at_[ranges_] = static_cast<const char*>(start);
    end_[ranges_++] = static_cast<const char*>(start) + bytes;
    lines_ += static_cast<uint32_t>(bytes / kLineBytes) + 1;
  }
  /// The work meanwhile: StepFor is called until it has been told of so many tokens.
  void SpreadOver(uint32_t tokens) {
    lines_a_token_ = static_cast<float>(lines_) / static_cast<float>(tokens);
  }
  HWY_INLINE void StepFor(uint32_t tokens) {
    due_ += lines_a_token_ * static_cast<float>(tokens);
    for (; due_ >= 1.0f && range_ < ranges_; due_ -= 1.0f) {
      __builtin_prefetch(at_[range_], 0, 2);
      at_[range_] += kLineBytes;
      range_ += at_[range_] >= end_[range_] ? 1 : 0;
    }
  }

 private:
  static constexpr uint32_t kRangesMax = 6, kLineBytes = 64;
  const char* at_[kRangesMax];
  const char* end_[kRangesMax];
  uint32_t ranges_ = 0, range_ = 0, lines_ = 0;
  float lines_a_token_ = 0, due_ = 0;
};

/// exp(x) for x <= 0, relative error below 3e-7 above x = -87; nearly 0 below that. NaN stays NaN: a maximum
/// would lose it.
HWY_INLINE VF32 ExpOfNegative(VF32 x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const VF32 least = hn::Set(d, -126.0f), powers = hn::Mul(x, hn::Set(d, 1.442695041f));
  const VF32 t = hn::IfThenElse(hn::Lt(powers, least), least, powers);
  const VF32 n = hn::Round(t);
  const VF32 f = hn::Sub(t, n);  // 2^f by its Taylor series, |f| <= 1/2
  VF32 p = hn::Set(d, 1.5252734e-5f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.5403530e-4f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.3333558e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.6181291e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5504109e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022651e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314718e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(d, exponent));  // NaN whatever the exponent has become
}

struct MaxAndSum {
  float m, l;
};

/// scores[RoundUp(tokens, kTokenPad)], aligned: to exp(score - m), 0 beyond `tokens`. NaN where a score is
/// NaN or +infinity.
HWY_NOINLINE inline MaxAndSum SoftmaxRow(float* scores, uint32_t tokens) {
  const F32 d;
  const uint32_t padded = RoundUp(tokens, kTokenPad);
  for (uint32_t t = tokens; t < padded; ++t) scores[t] = -INFINITY;
  VF32 largest = hn::Set(d, -INFINITY);
  for (uint32_t t = 0; t < padded; t += hn::Lanes(d)) {
    const VF32 score = hn::Load(d, scores + t);
    largest = hn::IfThenElse(hn::Gt(score, largest), score, largest);  // never NaN
  }
  const VF32 m = hn::MaxOfLanes(d, largest);
  VF32 sum = hn::Zero(d);
  for (uint32_t t = 0; t < padded; t += hn::Lanes(d)) {
    const VF32 score = hn::Load(d, scores + t);
    const VF32 p = hn::IfThenZeroElse(hn::Eq(score, hn::Set(d, -INFINITY)), ExpOfNegative(hn::Sub(score, m)));
    hn::Store(p, d, scores + t);
    sum = hn::Add(sum, p);
  }
  return {hn::GetLane(m), hn::GetLane(hn::SumOfLanes(d, sum))};
}

/// A vector of fp32 from fp16 at any address.
HWY_INLINE VF32 LoadFp16(const void* halves) {
  const F32 d;
  const hn::Rebind<hwy::float16_t, F32> df16;
  return hn::PromoteTo(d, hn::LoadU(df16, static_cast<const hwy::float16_t*>(halves)));
}

/// x[n] . fp16[n], n a multiple of 16.
HWY_INLINE float DotWithFp16(const float* x, const uint8_t* halves, uint32_t n) {
  const F32 d;
  VF32 sum = hn::Zero(d);
  for (uint32_t i = 0; i < n; i += hn::Lanes(d))
    sum = hn::MulAdd(hn::LoadU(d, x + i), LoadFp16(halves + 2 * i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// into[n] += factor * row[n], n a multiple of 16.
HWY_INLINE void AddScaled(const float* row, float factor, uint32_t n, float* into) {
  const F32 d;
  for (uint32_t i = 0; i < n; i += hn::Lanes(d))
    hn::StoreU(hn::MulAdd(hn::LoadU(d, row + i), hn::Set(d, factor), hn::LoadU(d, into + i)), d, into + i);
}

/// The kernel for a chunk of queries: Kernels::Run<Q>(first query, queries, KV head), Q a size that has a
/// kernel.
template <typename Kernels>
HWY_INLINE void ForEachChunk(const BlockShape& shape, uint32_t query_heads, uint32_t head,
                             const Kernels& kernels) {
  const uint32_t group = query_heads / shape.kv_heads;
  for (uint32_t done = 0; done < group; done += kQueryChunk) {
    const uint32_t first = head * group + done, queries = HWY_MIN(group - done, kQueryChunk);
    switch (PaddedChunk(queries)) {
      case 1:
        kernels.template Run<1>(first, queries, head);
        break;
      case 2:
        kernels.template Run<2>(first, queries, head);
        break;
      case 4:
        kernels.template Run<4>(first, queries, head);
        break;
      default:
        kernels.template Run<8>(first, queries, head);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
