// AttendKv8 in fp32. Compiled once per target.
#if defined(KVTIER_KERNELS_SIMD_ATTEND_KV8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_ATTEND_KV8_INL_H_
#undef KVTIER_KERNELS_SIMD_ATTEND_KV8_INL_H_
#else
#define KVTIER_KERNELS_SIMD_ATTEND_KV8_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/attend_kv8.h"
#include "kernels/simd/attend_rows-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier {
namespace HWY_NAMESPACE {

/// The K scales go into the query, the minima into one number.
HWY_NOINLINE inline void LoadKv8Query(const AttendKv8Args& args, uint32_t query_head, uint32_t head,
                                      uint32_t slot, RowsChunk& chunk) {
  const F32 d;
  const uint32_t k_dim = args.shape.k_dim;
  const float* q = args.query.q + uint64_t{query_head} * k_dim;
  const uint64_t ranges = uint64_t{2} * head * k_dim;
  VF32 bias = hn::Zero(d);
  for (uint32_t c = 0; c < k_dim; c += hn::Lanes(d)) {
    const VF32 plain = hn::Mul(hn::LoadU(d, q + c), hn::Set(d, args.query.scale));
    hn::Store(hn::Mul(plain, LoadFp16(args.in.k_scale + ranges + 2 * c)), d, chunk.query[slot] + c);
    bias = hn::MulAdd(plain, LoadFp16(args.in.k_min + ranges + 2 * c), bias);
  }
  chunk.bias[slot] = hn::GetLane(hn::SumOfLanes(d, bias));
}

HWY_INLINE void ScoreRawRows(const AttendKv8Args& args, uint32_t first_query, uint32_t queries, uint32_t head,
                             RowsChunk& chunk) {
  const uint32_t k_dim = args.shape.k_dim, nraw = args.shape.nraw;
  for (uint32_t t = 0; t < nraw; ++t) {
    const uint8_t* row = args.in.k_raw + 2 * (uint64_t{head} * nraw + t) * k_dim;
    for (uint32_t i = 0; i < queries; ++i)
      chunk.scores[i][t] =
          args.query.scale * DotWithFp16(args.query.q + uint64_t{first_query + i} * k_dim, row, k_dim);
  }
}

HWY_INLINE void AddRawRows(const AttendKv8Args& args, uint32_t queries, uint32_t head,
                           const float (&raw_probability)[kQueryChunk][kMaxRawRows], float* o) {
  const F32 d;
  const uint32_t v_dim = args.shape.v_dim, nraw = args.shape.nraw;
  for (uint32_t t = 0; t < nraw; ++t) {
    const uint8_t* row = args.in.v_raw + 2 * (uint64_t{head} * nraw + t) * v_dim;
    alignas(64) float values[kMaxHeadDim];
    for (uint32_t c = 0; c < v_dim; c += hn::Lanes(d)) hn::Store(LoadFp16(row + 2 * c), d, values + c);
    for (uint32_t i = 0; i < queries; ++i)
      AddScaled(values, raw_probability[i][t], v_dim, o + uint64_t{i} * v_dim);
  }
}

template <uint32_t Q>
HWY_INLINE void AttendKv8Chunk(const AttendKv8Args& args, uint32_t first_query, uint32_t queries, uint32_t h,
                               RowsChunk& chunk) {
  const BlockShape& shape = args.shape;
  const uint64_t row = uint64_t{h} * shape.tokens;
  const HeadRows head = {.k = args.in.k_codes + row * shape.k_dim,
                         .v = args.in.v_codes + row * shape.v_dim,
                         .k_dim = shape.k_dim,
                         .v_dim = shape.v_dim,
                         .tokens = shape.tokens};
  for (uint32_t i = 0; i < Q; ++i) LoadKv8Query(args, first_query + HWY_MIN(i, queries - 1), h, i, chunk);
  Prefetcher v_rows = PrefetchWhileScoring(head, uint64_t{shape.tokens} * shape.v_dim);
  ScoreRows<Q, CodeElements>(head, chunk, v_rows);
  ScoreRawRows(args, first_query, queries, h, chunk);
  float raw_probability[kQueryChunk][kMaxRawRows];
  for (uint32_t i = 0; i < Q; ++i) {
    const MaxAndSum sums = SoftmaxRow(chunk.scores[i], shape.tokens);
    for (uint32_t t = 0; t < shape.tokens; ++t) {
      if (t < shape.nraw) raw_probability[i][t] = chunk.scores[i][t];
      chunk.scores[i][t] *= t < shape.nraw ? 0.0f : Fp32FromFp16(Load16(args.in.v_scale + 2 * (row + t)));
    }
    if (i >= queries) continue;
    args.out.m[first_query + i] = sums.m;
    args.out.l[first_query + i] = sums.l;
  }
  const uint64_t k_bytes = uint64_t{shape.tokens} * shape.k_dim;
  Prefetcher next_k = PrefetchWhileSumming<Q>(head, head.k + k_bytes, k_bytes);
  float* o = args.out.o + uint64_t{first_query} * shape.v_dim;
  SumRows<Q, E4m3Elements>(head, chunk, queries, o, next_k);
  AddRawRows(args, queries, h, raw_probability, o);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
