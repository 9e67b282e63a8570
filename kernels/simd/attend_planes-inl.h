// AttendPlanes by integer dot products. Compiled once per target.
#if defined(KVTIER_KERNELS_SIMD_ATTEND_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_ATTEND_PLANES_INL_H_
#undef KVTIER_KERNELS_SIMD_ATTEND_PLANES_INL_H_
#else
#define KVTIER_KERNELS_SIMD_ATTEND_PLANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/attend.h"
#include "kernels/simd/attend_common-inl.h"
#include "kernels/simd/dot_codes-inl.h"
#include "kernels/simd/transpose_codes-inl.h"

#if HWY_TARGET != HWY_SCALAR

KVTIER_BEFORE_DOT_BYTES
namespace kvtier {
namespace HWY_NAMESPACE {

/// One KV head of a block, ready for any number of queries.
struct alignas(64) HeadPlanes {
  WordColumns k_high;
  WordColumns k_low;  ///< the low plane or, at INT2, the boost
  TokenColumns v_high;
  TokenColumns v_low;
  float k_scale[kMaxHeadDim];
  float k_middle[kMaxHeadDim];             ///< the value in the middle of the grid: min + 7.5 scale
  float v_scale[kVGroupsMax][kMaxTokens];  ///< 0 for raw rows and beyond the tokens
  float v_raw[kMaxRawRows][kMaxHeadDim];   ///< rotated
  uint8_t boost_ids[kMaxHeadDim];          ///< below k_dim
};

/// Some queries of one KV head.
struct alignas(64) QueryChunk {
  float scores[kQueryChunk][kMaxTokens];  ///< then probabilities
  int8_t query[kQueryChunk][kMaxHeadDim];
  int8_t boost_query[kQueryChunk][kMaxHeadDim];
  uint8_t weights[kQueryChunk][kVGroupsMax][kMaxTokens];
  float k_step[kQueryChunk], k_bias[kQueryChunk];
  float v_step[kQueryChunk][kVGroupsMax], v_bias[kQueryChunk][kVGroupsMax];
};

HWY_INLINE void LoadKRanges(const AttendPlanesArgs& args, uint32_t head, HeadPlanes& planes) {
  const F32 d;
  const uint32_t k_dim = args.shape.k_dim;
  const uint64_t first = uint64_t{2} * head * k_dim;
  for (uint32_t c = 0; c < k_dim; c += hn::Lanes(d)) {
    const VF32 scale = LoadFp16(args.in.k_scale + first + 2 * c);
    const VF32 minimum = LoadFp16(args.in.k_min + first + 2 * c);
    hn::Store(scale, d, planes.k_scale + c);
    hn::Store(hn::MulAdd(scale, hn::Set(d, 7.5f), minimum), d, planes.k_middle + c);
  }
}

/// The fp16 with bits e << 7, exactly also where fp32 subnormals are off.
HWY_INLINE VF32 ScaleOfByte(VI32 e) {
  const F32 d;
  const I32 di;
  const VF32 normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(e), hn::Set(di, (127 - 15) << 23)));
  const VF32 subnormal = hn::Mul(hn::ConvertTo(d, e), hn::Set(d, 1.0f / (1 << 17)));
  return hn::IfThenElse(hn::RebindMask(d, hn::Lt(e, hn::Set(di, 8))), subnormal, normal);
}

HWY_INLINE void LoadVScales(const AttendPlanesArgs& args, uint32_t head, HeadPlanes& planes) {
  const F32 d;
  const I32 di;
  const BlockShape& shape = args.shape;
  const uint32_t groups = VGroups(shape), padded = RoundUp(shape.tokens, kTokenPad);
  // A copy with room behind it: [token][group], as words of one or two groups where there are not more.
  alignas(64) uint8_t bytes[kMaxTokens * kVGroupsMax];
  memcpy(bytes, args.in.v_scale + PlaneRow(shape, head, 0) * groups, size_t{PaddedTokens(shape)} * groups);
  memset(bytes + size_t{shape.tokens} * groups, 0, size_t{padded - shape.tokens} * groups);
  memset(bytes, 0, size_t{HWY_MIN(uint32_t{shape.nraw}, uint32_t{shape.tokens})} * groups);
  for (uint32_t t = 0; t < padded; t += hn::Lanes(d)) {
    if (groups == 1) {
      const hn::Rebind<uint8_t, I32> d8;
      hn::Store(ScaleOfByte(hn::PromoteTo(di, hn::LoadU(d8, bytes + t))), d, planes.v_scale[0] + t);
    } else if (groups == 2) {
      const hn::Rebind<uint16_t, I32> d16;
      const VI32 pair = hn::PromoteTo(di, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(bytes) + t));
      hn::Store(ScaleOfByte(hn::And(pair, hn::Set(di, 0xff))), d, planes.v_scale[0] + t);
      hn::Store(ScaleOfByte(hn::ShiftRight<8>(pair)), d, planes.v_scale[1] + t);
    } else {
      for (uint32_t g = 0; g < groups; ++g) {
        alignas(64) int32_t e[HWY_LANES(int32_t)];
        for (uint32_t i = 0; i < hn::Lanes(d); ++i) e[i] = bytes[(t + i) * groups + g];
        hn::Store(ScaleOfByte(hn::Load(di, e)), d, planes.v_scale[g] + t);
      }
    }
  }
}

HWY_INLINE void LoadRawV(const AttendPlanesArgs& args, uint32_t head, HeadPlanes& planes) {
  const F32 d;
  const uint32_t v_dim = args.shape.v_dim, nraw = args.shape.nraw;
  for (uint32_t t = 0; t < nraw; ++t) {
    const uint8_t* row = args.in.v_raw + 2 * (uint64_t{head} * nraw + t) * v_dim;
    for (uint32_t c = 0; c < v_dim; c += hn::Lanes(d))
      hn::Store(LoadFp16(row + 2 * c), d, planes.v_raw[t] + c);
    RotateV(planes.v_raw[t], v_dim);
  }
}

HWY_NOINLINE inline void LoadHead(const AttendPlanesArgs& args, uint32_t head, HeadPlanes& planes) {
  const BlockShape& shape = args.shape;
  const uint32_t tokens = PaddedTokens(shape), k_dim = shape.k_dim, v_dim = shape.v_dim, nb = shape.nb;
  const uint64_t row = PlaneRow(shape, head, 0);
  LoadKRanges(args, head, planes);
  TransposeWords(args.in.k_high + row * (k_dim / 4), k_dim, tokens, planes.k_high);
  if (args.in.k_low != nullptr) {
    TransposeWords(args.in.k_low + row * (k_dim / 4), k_dim, tokens, planes.k_low);
  } else if (args.in.boost_ids != nullptr) {
    for (uint32_t i = 0; i < nb; ++i) {
      const uint8_t id = args.in.boost_ids[uint64_t{head} * nb + i];
      planes.boost_ids[i] = static_cast<uint8_t>(id < k_dim ? id : k_dim - 1);
    }
    TransposeWords(args.in.boost_low + row * (nb / 4), nb, tokens, planes.k_low);
  }
  LoadVScales(args, head, planes);
  LoadRawV(args, head, planes);
  TransposeTokens(args.in.v_high + row * (v_dim / 4), v_dim, tokens, planes.v_high);
  if (args.in.v_low != nullptr)
    TransposeTokens(args.in.v_low + row * (v_dim / 4), v_dim, tokens, planes.v_low);
}

/// Rounded, and inside [least, most] also where damaged bytes made it infinite or no number: sums of such
/// codes cannot overflow.
HWY_INLINE VI32 BoundedCode(VF32 value, float least, float most) {
  const F32 d;
  return hn::NearestInt(hn::Min(hn::Max(value, hn::Set(d, least)), hn::Set(d, most)));
}

/// q s rounded to int8; what that loses in the middle of the grid is put back exactly by the bias, so that
/// the error is that of (code - middle) alone:
///   score = step * (codes . query) + bias
HWY_NOINLINE inline void QuantizeQuery(const AttendPlanesArgs& args, uint32_t query_head,
                                       const HeadPlanes& planes, uint32_t slot, QueryChunk& chunk) {
  const F32 d;
  const hn::Rebind<int8_t, F32> d8;
  const uint32_t k_dim = args.shape.k_dim;
  const float* q = args.query.q + uint64_t{query_head} * k_dim;
  alignas(64) float scaled[kMaxHeadDim];
  VF32 largest = hn::Zero(d), bias = hn::Zero(d);
  for (uint32_t c = 0; c < k_dim; c += hn::Lanes(d)) {
    const VF32 plain = hn::Mul(hn::LoadU(d, q + c), hn::Set(d, args.query.scale));
    const VF32 x = hn::Mul(plain, hn::Load(d, planes.k_scale + c));
    bias = hn::MulAdd(plain, hn::Load(d, planes.k_middle + c), bias);
    largest = hn::Max(largest, hn::Abs(x));
    hn::Store(x, d, scaled + c);
  }
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float inverse = most > 0 ? 127.0f / most : 0.0f;
  VI32 sum = hn::Zero(I32());
  for (uint32_t c = 0; c < k_dim; c += hn::Lanes(d)) {
    const VI32 code = BoundedCode(hn::Mul(hn::Load(d, scaled + c), hn::Set(d, inverse)), -127.0f, 127.0f);
    sum = hn::Add(sum, code);
    hn::StoreU(hn::DemoteTo(d8, code), d8, chunk.query[slot] + c);
  }
  const auto code_sum = static_cast<float>(hn::GetLane(hn::SumOfLanes(I32(), sum)));
  // Middle of the codes: 7.5 of 0 .. 15, 6 of {0, 4, 8, 12}.
  const float middle = args.in.k_low != nullptr ? 7.5f : 6.0f;
  chunk.k_step[slot] = most / 127.0f;
  chunk.k_bias[slot] = hn::GetLane(hn::SumOfLanes(d, bias)) - chunk.k_step[slot] * (middle * code_sum);
}

#if HWY_TARGET == HWY_AVX3_DL
/// out[nb] = query[ids]; zeros up to the next multiple of 64. Returns the sum.
HWY_INLINE int32_t GatherQuery(const int8_t* query, const uint8_t* ids, uint32_t nb, int8_t* out) {
  const __m512i q0 = _mm512_loadu_si512(query), q1 = _mm512_loadu_si512(query + 64);
  const __m512i q2 = _mm512_loadu_si512(query + 128), q3 = _mm512_loadu_si512(query + 192);
  VI32 sum = hn::Zero(I32());
  for (uint32_t first = 0; first < nb; first += 64) {
    const uint32_t n = HWY_MIN(nb - first, 64u);
    const __m512i id = _mm512_loadu_si512(ids + first);
    const __m512i lower = _mm512_permutex2var_epi8(q0, id, q1), upper = _mm512_permutex2var_epi8(q2, id, q3);
    const __m512i any = _mm512_mask_blend_epi8(_mm512_movepi8_mask(id), lower, upper);
    const __m512i codes = _mm512_maskz_mov_epi8(~uint64_t{0} >> (64 - n), any);
    _mm512_storeu_si512(out + first, codes);
    sum = DotBytes(sum, hn::Set(I32(), 0x01010101), VI32{codes});
  }
  return hn::GetLane(hn::SumOfLanes(I32(), sum));
}
#endif

/// The query of the boosted channels, in the order of their plane: quarter k of a tile begins at a word.
HWY_INLINE int32_t PlaceBoostQuery(const int8_t* query, const uint8_t* ids, uint32_t nb, int8_t* out) {
#if HWY_TARGET == HWY_AVX3_DL
  if (nb % 16 == 0) return GatherQuery(query, ids, nb, out);
#endif
  int32_t sum = 0;
  memset(out, 0, kMaxHeadDim);
  for (uint32_t first = 0; first < nb; first += kTileCodes) {
    const uint32_t quarter = TileCodes(nb, first) / 4, quarter_bytes = RoundUp(quarter, 4);
    for (uint32_t i = 0; i < 4 * quarter; ++i) {
      const int8_t code = query[ids[first + i]];
      out[first + i / quarter * quarter_bytes + i % quarter] = code;
      sum += code;
    }
  }
  return sum;
}
HWY_INLINE void LoadBoostQuery(uint32_t nb, const HeadPlanes& planes, uint32_t slot, QueryChunk& chunk) {
  const int32_t sum = PlaceBoostQuery(chunk.query[slot], planes.boost_ids, nb, chunk.boost_query[slot]);
  chunk.k_bias[slot] -= chunk.k_step[slot] * (1.5f * static_cast<float>(sum));
}

/// Scores of all tokens, raw rows last.
template <uint32_t Q>
HWY_INLINE void Score(const AttendPlanesArgs& args, uint32_t first_query, uint32_t queries, uint32_t head,
                      const HeadPlanes& planes, QueryChunk& chunk, Prefetcher& prefetcher) {
  const BlockShape& shape = args.shape;
  const bool has_boost = args.in.k_low == nullptr && args.in.boost_ids != nullptr;
  for (uint32_t i = 0; i < Q; ++i) {
    if (i < queries) {
      QuantizeQuery(args, first_query + i, planes, i, chunk);
      if (has_boost) LoadBoostQuery(shape.nb, planes, i, chunk);
    } else {
      memset(chunk.query[i], 0, sizeof chunk.query[i]);
      memset(chunk.boost_query[i], 0, sizeof chunk.boost_query[i]);
      chunk.k_step[i] = chunk.k_bias[i] = 0;
    }
  }
  const ScoreInputs inputs = {.high = planes.k_high,
                              .low = planes.k_low,
                              .k_dim = shape.k_dim,
                              .nb = has_boost ? uint32_t{shape.nb} : 0,
                              .query = chunk.query,
                              .boost_query = chunk.boost_query,
                              .step = chunk.k_step,
                              .bias = chunk.k_bias};
  const uint32_t padded = RoundUp(shape.tokens, kTokenPad);
  if (args.in.k_low != nullptr) {
    ScoreAllTokens<Q, true>(inputs, padded, chunk.scores, prefetcher);
  } else {
    ScoreAllTokens<Q, false>(inputs, padded, chunk.scores, prefetcher);
  }
  for (uint32_t t = 0; t < shape.nraw; ++t) {
    const uint8_t* row = args.in.k_raw + 2 * (uint64_t{head} * shape.nraw + t) * shape.k_dim;
    for (uint32_t i = 0; i < queries; ++i)
      chunk.scores[i][t] =
          args.query.scale *
          DotWithFp16(args.query.q + uint64_t{first_query + i} * shape.k_dim, row, shape.k_dim);
  }
}

/// Probabilities times V scales, rounded to uint8.
HWY_NOINLINE inline void WeighTokens(uint32_t tokens, uint32_t groups, float middle, const HeadPlanes& planes,
                                     uint32_t slot, QueryChunk& chunk) {
  const F32 d;
  const hn::Rebind<uint8_t, F32> d8;
  const uint32_t padded = RoundUp(tokens, kTokenPad);
  const float* p = chunk.scores[slot];
  for (uint32_t g = 0; g < groups; ++g) {
    VF32 largest = hn::Zero(d);
    for (uint32_t t = 0; t < padded; t += hn::Lanes(d))
      largest = hn::Max(largest, hn::Mul(hn::Load(d, p + t), hn::Load(d, planes.v_scale[g] + t)));
    const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
    const VF32 inverse = hn::Set(d, most > 0 ? 255.0f / most : 0.0f);
    VI32 sum = hn::Zero(I32());
    for (uint32_t t = 0; t < padded; t += hn::Lanes(d)) {
      const VF32 weight = hn::Mul(hn::Mul(hn::Load(d, p + t), hn::Load(d, planes.v_scale[g] + t)), inverse);
      const VI32 code = BoundedCode(weight, 0.0f, 255.0f);
      sum = hn::Add(sum, code);
      hn::StoreU(hn::DemoteTo(d8, code), d8, chunk.weights[slot][g] + t);
    }
    const auto code_sum = static_cast<float>(hn::GetLane(hn::SumOfLanes(I32(), sum)));
    chunk.v_step[slot][g] = most / 255.0f;
    chunk.v_bias[slot][g] = -chunk.v_step[slot][g] * (middle * code_sum);
  }
}

template <uint32_t Q>
HWY_NOINLINE inline void AttendChunk(const AttendPlanesArgs& args, uint32_t first_query, uint32_t queries,
                                     uint32_t head, const HeadPlanes& planes, QueryChunk& chunk,
                                     Prefetcher& prefetcher) {
  const BlockShape& shape = args.shape;
  const uint32_t groups = VGroups(shape), v_dim = shape.v_dim;
  Score<Q>(args, first_query, queries, head, planes, chunk, prefetcher);
  const bool has_low = args.in.v_low != nullptr;
  for (uint32_t i = 0; i < queries; ++i) {
    const MaxAndSum sums = SoftmaxRow(chunk.scores[i], shape.tokens);
    args.out.m[first_query + i] = sums.m;
    args.out.l[first_query + i] = sums.l;
    WeighTokens(shape.tokens, groups, has_low ? 7.5f : 6.0f, planes, i, chunk);
  }
  for (uint32_t i = queries; i < Q; ++i) memset(chunk.weights[i], 0, sizeof chunk.weights[i]);
  float* o = args.out.o + uint64_t{first_query} * v_dim;
  for (uint32_t g = 0; g < groups; ++g) {
    const TileInputs inputs = {.high = planes.v_high[g],
                               .low = planes.v_low[g],
                               .tokens = PaddedTokens(shape),
                               .codes = TileCodes(v_dim, g * kTileCodes),
                               .weights = &chunk.weights[0][g],
                               .step = &chunk.v_step[0][g],
                               .bias = &chunk.v_bias[0][g]};
    const TileOutputs outputs = {.o = o + g * kTileCodes, .stride = v_dim, .queries = queries};
    has_low ? SumTile<Q, true>(inputs, outputs, prefetcher) : SumTile<Q, false>(inputs, outputs, prefetcher);
  }
  for (uint32_t t = 0; t < shape.nraw; ++t)
    for (uint32_t i = 0; i < queries; ++i)
      AddScaled(planes.v_raw[t], chunk.scores[i][t], v_dim, o + uint64_t{i} * v_dim);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
