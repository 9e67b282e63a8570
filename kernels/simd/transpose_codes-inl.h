// Packed codes, from rows of tokens to what integer dot products take. Compiled once per target.
#if defined(KVTIER_KERNELS_SIMD_TRANSPOSE_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_TRANSPOSE_CODES_INL_H_
#undef KVTIER_KERNELS_SIMD_TRANSPOSE_CODES_INL_H_
#else
#define KVTIER_KERNELS_SIMD_TRANSPOSE_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/simd/attend_common-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier {
namespace HWY_NAMESPACE {

using U32 = hn::ScalableTag<uint32_t>;
using VU32 = hn::Vec<U32>;

/// A row of n codes in a 2-bit plane is ceil(n / 16) words of 32 bits; the last one may be short.
constexpr uint32_t WordsOf(uint32_t codes) {
  return (codes + 15) / 16;
}
inline constexpr uint32_t kRowWordsMax = WordsOf(kMaxHeadDim);
inline constexpr uint32_t kVGroupsMax = kMaxHeadDim / kTileCodes;
inline constexpr uint32_t kTileColumns = kTileBytes;

/// [word][token]: a vector is the same word of neighbouring tokens.
using WordColumns = uint32_t[kRowWordsMax][kMaxTokens];
/// [tile][four tokens][column]: byte i of a word is byte `column` of the tile in the i-th of the four tokens.
using TokenColumns = uint32_t[kVGroupsMax][kMaxTokens / 4][kTileColumns];

/// v[W], W * lanes words in memory order: to v[p] = the words whose index is reversed-bits(p) modulo W.
template <uint32_t W>
HWY_INLINE void Decimate(VU32* v) {
  if constexpr (W > 1) {
    const U32 d;
    VU32 even[W / 2], odd[W / 2];
    for (uint32_t i = 0; i < W / 2; ++i) {
      even[i] = hn::ConcatEven(d, v[2 * i + 1], v[2 * i]);
      odd[i] = hn::ConcatOdd(d, v[2 * i + 1], v[2 * i]);
    }
    for (uint32_t i = 0; i < W / 2; ++i) {
      v[i] = even[i];
      v[W / 2 + i] = odd[i];
    }
    Decimate<W / 2>(v);
    Decimate<W / 2>(v + W / 2);
  }
}

template <uint32_t W>
constexpr uint32_t ReversedBits(uint32_t p) {
  uint32_t reversed = 0;
  for (uint32_t bit = 1; bit < W; bit *= 2) reversed = reversed * 2 + (p & bit ? 1 : 0);
  return reversed;
}

/// Rows of W words, as many tokens as fill vectors; returns how many tokens that were.
template <uint32_t W>
HWY_INLINE uint32_t TransposeWholeVectors(const uint8_t* rows, uint32_t tokens, WordColumns& out) {
  constexpr U32 d;
  constexpr uint32_t kLanes = HWY_LANES(uint32_t);
  const hn::Repartition<uint8_t, U32> d8;
  uint32_t t = 0;
  for (; t + kLanes <= tokens; t += kLanes) {
    VU32 v[W];
    for (uint32_t i = 0; i < W; ++i)
      v[i] = hn::BitCast(d, hn::LoadU(d8, rows + (uint64_t{t} * W + i * kLanes) * sizeof(uint32_t)));
    Decimate<W>(v);
    for (uint32_t p = 0; p < W; ++p) hn::Store(v[p], d, out[ReversedBits<W>(p)] + t);
  }
  return t;
}

/// rows [tokens][codes / 4] to columns; tokens up to the next multiple of kTokenPad get zeros.
HWY_INLINE void TransposeWords(const uint8_t* rows, uint32_t codes, uint32_t tokens, WordColumns& out) {
  const uint32_t words = WordsOf(codes), row_bytes = codes / 4;
  uint32_t done = 0;
  if (row_bytes == 4) done = TransposeWholeVectors<1>(rows, tokens, out);
  if (row_bytes == 8) done = TransposeWholeVectors<2>(rows, tokens, out);
  if (row_bytes == 16) done = TransposeWholeVectors<4>(rows, tokens, out);
  if (row_bytes == 32) done = TransposeWholeVectors<8>(rows, tokens, out);
  if (row_bytes == 64) done = TransposeWholeVectors<16>(rows, tokens, out);
  for (uint32_t t = done; t < RoundUp(tokens, kTokenPad); ++t) {
    for (uint32_t w = 0; w < words; ++w) {
      out[w][t] = 0;
      if (t < tokens)
        memcpy(&out[w][t], rows + uint64_t{t} * row_bytes + 4 * w, HWY_MIN(4u, row_bytes - 4 * w));
    }
  }
}

/// One tile of four rows, `row_bytes` apart.
HWY_INLINE void TransposeTile(const uint8_t* rows, uint32_t row_bytes, uint32_t tile_bytes, uint32_t* out) {
  if (tile_bytes < kTileBytes) {
    for (uint32_t column = 0; column < kTileColumns; ++column) {
      uint8_t bytes[4] = {};
      for (uint32_t i = 0; i < 4 && column < tile_bytes; ++i) bytes[i] = rows[i * row_bytes + column];
      memcpy(out + column, bytes, sizeof bytes);
    }
    return;
  }
  const hn::FixedTag<uint8_t, 16> d8;
  const hn::FixedTag<uint16_t, 8> d16;
  const hn::FixedTag<uint32_t, 4> d32;
  const auto r0 = hn::LoadU(d8, rows), r1 = hn::LoadU(d8, rows + row_bytes);
  const auto r2 = hn::LoadU(d8, rows + 2 * row_bytes), r3 = hn::LoadU(d8, rows + 3 * row_bytes);
  const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d8, r0, r1));
  const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d8, r2, r3));
  const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d8, r0, r1));
  const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d8, r2, r3));
  hn::Store(hn::BitCast(d32, hn::InterleaveLower(d16, low01, low23)), d32, out);
  hn::Store(hn::BitCast(d32, hn::InterleaveUpper(d16, low01, low23)), d32, out + 4);
  hn::Store(hn::BitCast(d32, hn::InterleaveLower(d16, high01, high23)), d32, out + 8);
  hn::Store(hn::BitCast(d32, hn::InterleaveUpper(d16, high01, high23)), d32, out + 12);
}

#if HWY_TARGET == HWY_AVX3_DL
/// Byte 4c + i of the result is byte c of tile `tile` in row i, rows of `tiles` tiles in memory order.
HWY_INLINE __m512i TileIndices(uint32_t tiles, uint32_t tile) {
  alignas(64) uint8_t index[64];
  for (uint32_t i = 0; i < 64; ++i)
    index[i] = static_cast<uint8_t>((i % 4 * tiles + tile) * kTileBytes + i / 4);
  return _mm512_load_si512(index);
}

/// Rows of one or two whole tiles: four of them are one or two registers.
HWY_INLINE void TransposeTokensOfTwoTiles(const uint8_t* rows, uint32_t tokens, TokenColumns& out) {
  const __m512i first = TileIndices(2, 0), second = TileIndices(2, 1);
  for (uint32_t t = 0; t < tokens; t += 4) {
    const __m512i r01 = _mm512_loadu_si512(rows + t * 2 * kTileBytes);
    const __m512i r23 = _mm512_loadu_si512(rows + (t + 2) * 2 * kTileBytes);
    _mm512_store_si512(out[0][t / 4], _mm512_permutex2var_epi8(r01, first, r23));
    _mm512_store_si512(out[1][t / 4], _mm512_permutex2var_epi8(r01, second, r23));
  }
}
HWY_INLINE void TransposeTokensOfOneTile(const uint8_t* rows, uint32_t tokens, TokenColumns& out) {
  const __m512i index = TileIndices(1, 0);
  for (uint32_t t = 0; t < tokens; t += 4)
    _mm512_store_si512(out[0][t / 4],
                       _mm512_permutexvar_epi8(index, _mm512_loadu_si512(rows + t * kTileBytes)));
}
#endif

/// rows [tokens][codes / 4], tokens a multiple of 4.
HWY_INLINE void TransposeTokens(const uint8_t* rows, uint32_t codes, uint32_t tokens, TokenColumns& out) {
#if HWY_TARGET == HWY_AVX3_DL
  if (codes == kTileCodes) return TransposeTokensOfOneTile(rows, tokens, out);
  if (codes == 2 * kTileCodes) return TransposeTokensOfTwoTiles(rows, tokens, out);
#endif
  const uint32_t row_bytes = codes / 4;
  for (uint32_t t = 0; t < tokens; t += 4) {
    for (uint32_t first = 0; first < codes; first += kTileCodes)
      TransposeTile(rows + uint64_t{t} * row_bytes + first / 4, row_bytes, TileCodes(codes, first) / 4,
                    out[first / kTileCodes][t / 4]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvtier
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
