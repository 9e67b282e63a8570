// Attention over rows of whole elements, in fp32. Compiled once per target.
#if defined(KVTIER_KERNELS_SIMD_ATTEND_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_ATTEND_ROWS_INL_H_
#undef KVTIER_KERNELS_SIMD_ATTEND_ROWS_INL_H_
#else
#define KVTIER_KERNELS_SIMD_ATTEND_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/attend_rows.h"
#include "kernels/simd/attend_common-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier {
namespace HWY_NAMESPACE {

using U8Part = hn::Rebind<uint8_t, F32>;
using U16Part = hn::Rebind<uint16_t, F32>;

/// Kinds of elements: how a vector of them becomes fp32.
struct Fp16Elements {
  static constexpr uint32_t kBytes = 2;
  static HWY_INLINE VF32 Load(const uint8_t* at) { return LoadFp16(at); }
};
struct Bf16Elements {
  static constexpr uint32_t kBytes = 2;
  static HWY_INLINE VF32 Load(const uint8_t* at) {
    const hn::Rebind<uint32_t, F32> d32;
    const auto bits = hn::LoadU(U16Part(), reinterpret_cast<const uint16_t*>(at));
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
};
/// Seven bits where fp16 has them stand for 2^-8 of the value (kernels/fp8.h).
struct E4m3Elements {
  static constexpr uint32_t kBytes = 1;
  static HWY_INLINE VF32 Load(const uint8_t* at) {
    const U16Part d16;
    const auto code = hn::PromoteTo(d16, hn::LoadU(U8Part(), at));
    const auto magnitude = hn::And(code, hn::Set(d16, 0x7f));
    const auto finite = hn::ShiftLeft<7>(magnitude);
    const auto half = hn::IfThenElse(hn::Eq(magnitude, hn::Set(d16, 0x7f)), hn::Set(d16, 0x7e00), finite);
    const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(d16, 0x80)));
    const hn::Rebind<hwy::float16_t, F32> df16;
    return hn::Mul(hn::PromoteTo(F32(), hn::BitCast(df16, hn::Or(half, sign))), hn::Set(F32(), 256.0f));
  }
};
struct E5m2Elements {
  static constexpr uint32_t kBytes = 1;
  static HWY_INLINE VF32 Load(const uint8_t* at) {
    const hn::Rebind<hwy::float16_t, F32> df16;
    const auto half = hn::ShiftLeft<8>(hn::PromoteTo(U16Part(), hn::LoadU(U8Part(), at)));
    return hn::PromoteTo(F32(), hn::BitCast(df16, half));
  }
};
/// Codes 0 .. 255.
struct CodeElements {
  static constexpr uint32_t kBytes = 1;
  static HWY_INLINE VF32 Load(const uint8_t* at) {
    return hn::ConvertTo(F32(), hn::PromoteTo(hn::Rebind<int32_t, F32>(), hn::LoadU(U8Part(), at)));
  }
};

/// One KV head of a block.
struct HeadRows {
  const uint8_t* k;  ///< [tokens][k_dim]
  const uint8_t* v;  ///< [tokens][v_dim]
  uint32_t k_dim, v_dim, tokens;
};

/// Some queries of one KV head.
struct alignas(64) RowsChunk {
  float query[kQueryChunk][kMaxHeadDim];
  float scores[kQueryChunk]
              [kMaxTokens];  ///< then probabilities, times the V scale of the token where there is one
  float bias[kQueryChunk];   ///< added to every score
};

/// v[N] to the vector of their sums.
template <uint32_t N>
HWY_INLINE VF32 SumEach(const VF32* v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    const F32 d;
    VF32 pairs[N / 2];
    for (uint32_t i = 0; i < N / 2; ++i)
      pairs[i] = hn::Add(hn::ConcatEven(d, v[2 * i + 1], v[2 * i]), hn::ConcatOdd(d, v[2 * i + 1], v[2 * i]));
    return SumEach<N / 2>(pairs);
  }
}

/// scores[i][t] = query i . K row t + bias i.
template <uint32_t Q, typename Elements>
HWY_NOINLINE inline void ScoreRows(const HeadRows& head, RowsChunk& chunk, Prefetcher& prefetcher) {
  const F32 d;
  constexpr uint32_t kLanes = HWY_LANES(float);
  constexpr uint32_t kTokens = Q < kLanes ? kLanes / Q : 1;
  const uint64_t row_bytes = uint64_t{head.k_dim} * Elements::kBytes;
  for (uint32_t t = 0; t < head.tokens; t += kTokens) {
    const uint8_t* rows[kTokens];
    for (uint32_t j = 0; j < kTokens; ++j) rows[j] = head.k + HWY_MIN(t + j, head.tokens - 1) * row_bytes;
    VF32 sums[Q * kTokens];
    for (VF32& sum : sums) sum = hn::Zero(d);
    for (uint32_t c = 0; c < head.k_dim; c += kLanes) {
      VF32 k[kTokens];
      for (uint32_t j = 0; j < kTokens; ++j) k[j] = Elements::Load(rows[j] + c * Elements::kBytes);
      for (uint32_t i = 0; i < Q; ++i) {
        const VF32 q = hn::Load(d, chunk.query[i] + c);
        for (uint32_t j = 0; j < kTokens; ++j)
          sums[i * kTokens + j] = hn::MulAdd(q, k[j], sums[i * kTokens + j]);
      }
    }
    alignas(64) float each[Q * kTokens];
    for (uint32_t i = 0; i < Q * kTokens; i += kLanes) hn::Store(SumEach<kLanes>(sums + i), d, each + i);
    for (uint32_t i = 0; i < Q; ++i)
      for (uint32_t j = 0; j < kTokens; ++j) chunk.scores[i][t + j] = each[i * kTokens + j] + chunk.bias[i];
    prefetcher.StepFor(kTokens);
  }
}

/// o[i][c] = sum over tokens of weight[i][t] * V[t][c], for `C` vectors of channels.
template <uint32_t Q, uint32_t C, typename Elements>
HWY_NOINLINE inline void SumRowsAt(const HeadRows& head, const RowsChunk& chunk, uint32_t first,
                                   uint32_t queries, float* o, Prefetcher& prefetcher) {
  const F32 d;
  constexpr uint32_t kLanes = HWY_LANES(float);
  const uint64_t row_bytes = uint64_t{head.v_dim} * Elements::kBytes;
  const uint8_t* row = head.v + first * Elements::kBytes;
  VF32 sums[Q][C];
  for (uint32_t i = 0; i < Q; ++i)
    for (uint32_t j = 0; j < C; ++j) sums[i][j] = hn::Zero(d);
  for (uint32_t t = 0; t < head.tokens; ++t, row += row_bytes) {
    VF32 v[C];
    for (uint32_t j = 0; j < C; ++j) v[j] = Elements::Load(row + j * kLanes * Elements::kBytes);
    for (uint32_t i = 0; i < Q; ++i) {
      const VF32 weight = hn::Set(d, chunk.scores[i][t]);
      for (uint32_t j = 0; j < C; ++j) sums[i][j] = hn::MulAdd(weight, v[j], sums[i][j]);
    }
    if (t % 4 == 0) prefetcher.StepFor(4);
  }
  for (uint32_t i = 0; i < queries; ++i)
    for (uint32_t j = 0; j < C; ++j)
      hn::StoreU(sums[i][j], d, o + uint64_t{i} * head.v_dim + first + j * kLanes);
}

template <uint32_t Q>
constexpr uint32_t ColumnVectors() {
  const uint32_t sums =
      HWY_LANES(float) < 16 ? 8 : 16;  // of them fit into the registers beside weights and rows
  return HWY_MIN(8u, sums / Q);
}

template <uint32_t Q, typename Elements>
HWY_INLINE void SumRows(const HeadRows& head, const RowsChunk& chunk, uint32_t queries, float* o,
                        Prefetcher& prefetcher) {
  constexpr uint32_t kLanes = HWY_LANES(float), kVectors = ColumnVectors<Q>();
  uint32_t c = 0;
  for (; c + kVectors * kLanes <= head.v_dim; c += kVectors * kLanes)
    SumRowsAt<Q, kVectors, Elements>(head, chunk, c, queries, o, prefetcher);
  for (; c < head.v_dim; c += kLanes) SumRowsAt<Q, 1, Elements>(head, chunk, c, queries, o, prefetcher);
}

/// While scores are computed V of the head is fetched, meanwhile to the next head's K: `next_k` rows follow.
template <uint32_t Q>
HWY_INLINE Prefetcher PrefetchWhileSumming(const HeadRows& head, const uint8_t* next_k, uint64_t bytes) {
  Prefetcher prefetcher;
  prefetcher.Add(next_k, bytes);
  prefetcher.SpreadOver(head.tokens * HWY_MAX(1u, head.v_dim / (ColumnVectors<Q>() * HWY_LANES(float))));
  return prefetcher;
}
HWY_INLINE Prefetcher PrefetchWhileScoring(const HeadRows& head, uint64_t v_bytes) {
  Prefetcher prefetcher;
  prefetcher.Add(head.v, v_bytes);
  prefetcher.SpreadOver(head.tokens);
  return prefetcher;
}

HWY_INLINE HeadRows RowsOf(const AttendRowsArgs& args, uint32_t head, uint32_t element_bytes) {
  const BlockShape& shape = args.shape;
  const auto* raw = reinterpret_cast<const uint8_t*>(args.raw);
  const uint64_t row = uint64_t{head} * shape.tokens;
  const uint64_t k_rows = uint64_t{shape.kv_heads} * shape.tokens;
  return {.k = raw + row * shape.k_dim * element_bytes,
          .v = raw + (k_rows * shape.k_dim + row * shape.v_dim) * element_bytes,
          .k_dim = shape.k_dim,
          .v_dim = shape.v_dim,
          .tokens = shape.tokens};
}

/// Queries [first_query, first_query + queries) of one head of raw rows.
template <uint32_t Q, typename Elements>
HWY_INLINE void AttendRowsChunk(const AttendRowsArgs& args, uint32_t first_query, uint32_t queries,
                                uint32_t h, RowsChunk& chunk) {
  const F32 d;
  const HeadRows head = RowsOf(args, h, Elements::kBytes);
  const Fp8Scales scales = Elements::kBytes == 1 ? args.query.scales : Fp8Scales{};
  const VF32 scale = hn::Set(d, args.query.scale * scales.k);
  for (uint32_t i = 0; i < Q; ++i) {
    const float* q = args.query.q + uint64_t{first_query + HWY_MIN(i, queries - 1)} * head.k_dim;
    for (uint32_t c = 0; c < head.k_dim; c += hn::Lanes(d))
      hn::Store(hn::Mul(hn::LoadU(d, q + c), scale), d, chunk.query[i] + c);
    chunk.bias[i] = 0;
  }
  Prefetcher v_rows = PrefetchWhileScoring(head, uint64_t{head.tokens} * head.v_dim * Elements::kBytes);
  ScoreRows<Q, Elements>(head, chunk, v_rows);
  for (uint32_t i = 0; i < Q; ++i) {
    const MaxAndSum sums = SoftmaxRow(chunk.scores[i], head.tokens);
    if (i >= queries) continue;
    args.out.m[first_query + i] = sums.m;
    args.out.l[first_query + i] = sums.l;
  }
  const uint64_t k_bytes = uint64_t{head.tokens} * head.k_dim * Elements::kBytes;
  Prefetcher next_k = PrefetchWhileSumming<Q>(head, head.k + k_bytes, k_bytes);
  float* o = args.out.o + uint64_t{first_query} * head.v_dim;
  SumRows<Q, Elements>(head, chunk, queries, o, next_k);
  if (scales.v == 1.0f) return;
  for (uint64_t c = 0; c < uint64_t{queries} * head.v_dim; c += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::LoadU(d, o + c), hn::Set(d, scales.v)), d, o + c);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
