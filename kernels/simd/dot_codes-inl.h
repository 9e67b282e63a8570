// Integer dot products with packed codes: scores of tokens, weighted sums of V. Compiled once per target.
#if defined(KVTIER_KERNELS_SIMD_DOT_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_DOT_CODES_INL_H_
#undef KVTIER_KERNELS_SIMD_DOT_CODES_INL_H_
#else
#define KVTIER_KERNELS_SIMD_DOT_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/simd/attend_common-inl.h"
#include "kernels/simd/dot_bytes-inl.h"
#include "kernels/simd/transpose_codes-inl.h"

#if HWY_TARGET != HWY_SCALAR

KVTIER_BEFORE_DOT_BYTES
namespace kvtier {
namespace HWY_NAMESPACE {

/// The same four bytes in every word of a vector.
HWY_INLINE VI32 Broadcast(const void* four_bytes) {
  int32_t word;
  memcpy(&word, four_bytes, sizeof word);
  return hn::Set(I32(), word);
}

/// The bits of `yes` where the mask has ones, else those of `no`.
HWY_INLINE VU32 SelectBits(VU32 mask, VU32 yes, VU32 no) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::IfVecThenElse(mask, yes,
                           no);  // one instruction; on AVX2 it looks at the highest bit of bytes alone
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

/// Packed bytes of both planes to the codes of their four quarters. Shifts of words move bits between bytes;
/// the masks take what came from the own byte alone.
HWY_INLINE void UnpackInt4(VU32 high, VU32 low, VI32 (&codes)[4]) {
  const U32 d;
  const VU32 low_pairs = hn::Set(d, 0x33333333u), nibble = hn::Set(d, 0x0f0f0f0fu);
  const VU32 even = SelectBits(low_pairs, low, hn::ShiftLeft<2>(high));
  const VU32 odd = SelectBits(low_pairs, hn::ShiftRight<2>(low), high);
  codes[0] = hn::BitCast(I32(), hn::And(even, nibble));
  codes[1] = hn::BitCast(I32(), hn::And(odd, nibble));
  codes[2] = hn::BitCast(I32(), hn::And(hn::ShiftRight<4>(even), nibble));
  codes[3] = hn::BitCast(I32(), hn::And(hn::ShiftRight<4>(odd), nibble));
}
HWY_INLINE void UnpackInt2(VU32 plane, VI32 (&codes)[4]) {
  const VU32 pair = hn::Set(U32(), 0x03030303u);
  codes[0] = hn::BitCast(I32(), hn::And(plane, pair));
  codes[1] = hn::BitCast(I32(), hn::And(hn::ShiftRight<2>(plane), pair));
  codes[2] = hn::BitCast(I32(), hn::And(hn::ShiftRight<4>(plane), pair));
  codes[3] = hn::BitCast(I32(), hn::And(hn::ShiftRight<6>(plane), pair));
}

struct ScoreInputs {
  const WordColumns& high;
  const WordColumns& low;  ///< low plane or boost
  uint32_t k_dim;
  uint32_t nb;  ///< boosted channels, INT2 only
  const int8_t (*query)[kMaxHeadDim];
  const int8_t (*boost_query)[kMaxHeadDim];
  const float* step;
  const float* bias;
};

/// sums[i][u] += codes . query i for the tokens of vector u, from token t on. A tile's query has its four
/// quarters one after the other, each of as many words as the tile's rows.
template <uint32_t Q, uint32_t U, bool kHasLow>
HWY_INLINE void AddPlane(const WordColumns& high, const WordColumns& low, uint32_t codes_in_row, uint32_t t,
                         const int8_t (*query)[kMaxHeadDim], VI32 (&sums)[Q][U]) {
  const U32 d;
  for (uint32_t first = 0; first < codes_in_row; first += kTileCodes) {
    const uint32_t words = WordsOf(TileCodes(codes_in_row, first));
    for (uint32_t w = 0; w < words; ++w) {
      VI32 codes[U][4];
#pragma GCC unroll 8
      for (uint32_t u = 0; u < U; ++u) {
        const uint32_t at = t + u * HWY_LANES(uint32_t);
        const VU32 packed = hn::Load(d, high[first / 16 + w] + at);
        if constexpr (kHasLow) {
          UnpackInt4(packed, hn::Load(d, low[first / 16 + w] + at), codes[u]);
        } else {
          UnpackInt2(packed, codes[u]);
        }
      }
#pragma GCC unroll 8
      for (uint32_t k = 0; k < 4; ++k) {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < Q; ++i) {
          const VI32 four = Broadcast(query[i] + first + 4 * (k * words + w));
#pragma GCC unroll 8
          for (uint32_t u = 0; u < U; ++u) sums[i][u] = DotBytes(sums[i][u], codes[u][k], four);
        }
      }
    }
  }
}

template <uint32_t Q, uint32_t U, bool kHasLow>
HWY_NOINLINE inline void ScoreTokens(const ScoreInputs& in, uint32_t t, float (*scores)[kMaxTokens]) {
  const F32 d;
  VI32 sums[Q][U];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < Q; ++i)
#pragma GCC unroll 8
    for (uint32_t u = 0; u < U; ++u) sums[i][u] = hn::Zero(I32());
  AddPlane<Q, U, kHasLow>(in.high, in.low, in.k_dim, t, in.query, sums);
  if constexpr (!kHasLow) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < Q; ++i)
#pragma GCC unroll 8
      for (uint32_t u = 0; u < U; ++u) sums[i][u] = hn::ShiftLeft<2>(sums[i][u]);
    if (in.nb > 0) AddPlane<Q, U, false>(in.low, in.low, in.nb, t, in.boost_query, sums);
  }
#pragma GCC unroll 8
  for (uint32_t i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (uint32_t u = 0; u < U; ++u) {
      const VF32 score =
          hn::MulAdd(hn::ConvertTo(d, sums[i][u]), hn::Set(d, in.step[i]), hn::Set(d, in.bias[i]));
      hn::Store(score, d, scores[i] + t + u * hn::Lanes(d));
    }
  }
}

/// scores[i][t] = step[i] * (codes of t . query[i]) + bias[i], t < tokens, a multiple of kTokenPad.
template <uint32_t Q, bool kHasLow>
HWY_INLINE void ScoreAllTokens(const ScoreInputs& in, uint32_t tokens, float (*scores)[kMaxTokens],
                               Prefetcher& prefetcher) {
  constexpr uint32_t kLanes = HWY_LANES(uint32_t);
  // As many sums as the registers hold, so that queries are loaded rarely and sums don't wait for each other.
  constexpr uint32_t kVectors = kLanes < 16 ? (Q >= 4 ? 1 : 2) : (Q >= 4 ? 2 : 4);
  uint32_t t = 0;
  for (; t + kVectors * kLanes <= tokens; t += kVectors * kLanes) {
    ScoreTokens<Q, kVectors, kHasLow>(in, t, scores);
    prefetcher.StepFor(kVectors * kLanes);
  }
  for (; t < tokens; t += kLanes) ScoreTokens<Q, 1, kHasLow>(in, t, scores);
}

using WeightRow = uint8_t[kMaxTokens];
struct TileInputs {
  const uint32_t (*high)[kTileColumns];
  const uint32_t (*low)[kTileColumns];
  uint32_t tokens;           ///< a multiple of 4
  uint32_t codes;            ///< of the tile
  const WeightRow* weights;  ///< of query i: weights[i * kVGroupsMax]
  const float* step;         ///< of query i: step[i * kVGroupsMax]
  const float* bias;
};
struct TileOutputs {
  float* o;  ///< of query i, channel c: o[i * stride + c]
  uint32_t stride;
  uint32_t queries;  ///< those that are wanted, at most Q
};

/// What a sum of codes is multiplied by: INT2 codes of quarter k stay where they are in their byte, up to the
/// sign bit.
template <bool kHasLow>
constexpr float CodeUnit(uint32_t k) {
  return kHasLow ? 1.0f : k == 0 ? 4.0f : k == 1 ? 1.0f : k == 2 ? 0.25f : 4.0f;
}

/// The codes of quarters kFirst, kFirst + 2 (or all four).
template <bool kHasLow, uint32_t kQuarters>
HWY_INLINE void UnpackForSum(VU32 high, const uint32_t* low, uint32_t first, VI32 (&codes)[kQuarters]) {
  const U32 d;
  if constexpr (kHasLow && kQuarters == 4) {
    UnpackInt4(high, hn::Load(d, low), codes);
  } else if constexpr (kHasLow) {
    const VU32 low_pairs = hn::Set(d, 0x33333333u), nibble = hn::Set(d, 0x0f0f0f0fu);
    const VU32 two = first == 0 ? SelectBits(low_pairs, hn::Load(d, low), hn::ShiftLeft<2>(high))
                                : SelectBits(low_pairs, hn::ShiftRight<2>(hn::Load(d, low)), high);
    codes[0] = hn::BitCast(I32(), hn::And(two, nibble));
    codes[1] = hn::BitCast(I32(), hn::And(hn::ShiftRight<4>(two), nibble));
  } else {
    const VU32 last = hn::And(hn::ShiftRight<6>(high), hn::Set(d, 0x03030303u));
    const VU32 in_place[4] = {hn::And(high, hn::Set(d, 0x03030303u)), hn::And(high, hn::Set(d, 0x0c0c0c0cu)),
                              hn::And(high, hn::Set(d, 0x30303030u)), last};
#pragma GCC unroll 8
    for (uint32_t j = 0; j < kQuarters; ++j)
      codes[j] = hn::BitCast(I32(), in_place[kQuarters == 4 ? j : first + 2 * j]);
  }
}

/// sums[i][j] += weight i of four tokens times their codes in quarter j of a vector of columns.
template <uint32_t Q, bool kHasLow, uint32_t kQuarters>
HWY_INLINE void AddTokens(const TileInputs& in, uint32_t t, uint32_t column, uint32_t first,
                          VI32 (&sums)[Q][kQuarters]) {
  VI32 codes[kQuarters];
  UnpackForSum<kHasLow, kQuarters>(hn::Load(U32(), in.high[t / 4] + column), in.low[t / 4] + column, first,
                                   codes);
#pragma GCC unroll 8
  for (uint32_t i = 0; i < Q; ++i) {
    const VI32 four = Broadcast(in.weights[i * kVGroupsMax] + t);
#pragma GCC unroll 8
    for (uint32_t j = 0; j < kQuarters; ++j) sums[i][j] = DotBytes(sums[i][j], four, codes[j]);
  }
}

/// o = step * sum over tokens of weight * code + bias, for `kQuarters` quarters of a vector of columns.
template <uint32_t Q, bool kHasLow, uint32_t kQuarters>
HWY_NOINLINE inline void SumColumns(const TileInputs& in, const TileOutputs& out, uint32_t column,
                                    uint32_t first, Prefetcher& prefetcher) {
  const F32 d;
  VI32 sums[Q][kQuarters];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < Q; ++i)
#pragma GCC unroll 8
    for (uint32_t j = 0; j < kQuarters; ++j) sums[i][j] = hn::Zero(I32());
  for (uint32_t start = 0; start < in.tokens; start += kTokenPad) {
    const uint32_t end = HWY_MIN(start + kTokenPad, in.tokens);
    for (uint32_t t = start; t < end; t += 4) AddTokens<Q, kHasLow, kQuarters>(in, t, column, first, sums);
    prefetcher.StepFor(kTokenPad);
  }
  // By way of memory: an index that varies would keep the sums out of registers.
  alignas(64) float values[Q][kQuarters][HWY_LANES(float)];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < Q; ++i) {
    const VF32 step = hn::Set(d, in.step[i * kVGroupsMax]), bias = hn::Set(d, in.bias[i * kVGroupsMax]);
#pragma GCC unroll 8
    for (uint32_t j = 0; j < kQuarters; ++j) {
      const VF32 unit = hn::Set(d, CodeUnit<kHasLow>(kQuarters == 4 ? j : first + 2 * j));
      hn::Store(hn::MulAdd(hn::Mul(hn::ConvertTo(d, sums[i][j]), unit), step, bias), d, values[i][j]);
    }
  }
  const uint32_t quarter_columns = in.codes / 4;
  const auto columns = HWY_MIN(quarter_columns - column, static_cast<uint32_t>(HWY_LANES(float)));
  for (uint32_t i = 0; i < out.queries; ++i) {
    for (uint32_t j = 0; j < kQuarters; ++j) {
      const uint32_t k = kQuarters == 4 ? j : first + 2 * j;
      memcpy(out.o + i * out.stride + k * quarter_columns + column, values[i][j], columns * sizeof(float));
    }
  }
}

/// One tile of V over all tokens, for Q queries.
template <uint32_t Q, bool kHasLow>
HWY_INLINE void SumTile(const TileInputs& in, const TileOutputs& out, Prefetcher& prefetcher) {
  constexpr uint32_t kSums =
      HWY_LANES(uint32_t) < 16 ? 8 : 16;  // of them fit into the registers beside codes
  for (uint32_t column = 0; column < in.codes / 4; column += HWY_LANES(uint32_t)) {
    if constexpr (Q * 4 <= kSums) {
      SumColumns<Q, kHasLow, 4>(in, out, column, 0, prefetcher);
    } else {
      SumColumns<Q, kHasLow, 2>(in, out, column, 0, prefetcher);
      SumColumns<Q, kHasLow, 2>(in, out, column, 1, prefetcher);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
