// V of the plane family, four tiles at a time. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_DECODE_V_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_DECODE_V_INL_H_

#include <immintrin.h>

#include <bit>

#include "kernels/simd/avx512_decode_head-inl.h"
#include "kernels/simd/avx512_planes-inl.h"
#include "kernels/simd/avx512_store-inl.h"
#include "kernels/simd/decode_layer.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

/// Four tiles after the butterflies h = 1, 2, 4, 8 of their codes: byte k of dword j is element 16 k + j,
/// plus 128 except where j = 0. Sums of 16 codes lie in 0..240 for j = 0 and within +-120 elsewhere, so bytes
/// hold them.
struct HalfRotated {
  __m512i tile[kSlots];
};

/// The same 16 bytes for every tile.
HWY_INLINE __m512i FourTimes(int64_t low, int64_t high) {
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

/// (a + b, a - b), bytes modulo 256.
HWY_INLINE void Butterfly(__m512i& a, __m512i& b) {
  const __m512i sum = _mm512_add_epi8(a, b);
  b = _mm512_sub_epi8(a, b);
  a = sum;
}

/// Every unpack brings one more bit of the element's index from inside the vectors to between them, where a
/// butterfly is an addition and a subtraction; the last one brings the tile. What names a vector below are
/// the bits of its bytes' index, j3 j2 j1 j0, after the first line has swapped (j3 j2) and (j1 j0).
HWY_INLINE HalfRotated RotateSixteens(const PackedCodes& codes) {
  const __m512i swap_halves = FourTimes(0x0d0905010c080400, 0x0f0b07030e0a0602);
  const __m512i even = _mm512_shuffle_epi8(codes.even, swap_halves);
  const __m512i odd = _mm512_shuffle_epi8(codes.odd, swap_halves);

  const __m512i first = _mm512_unpacklo_epi8(even, odd), second = _mm512_unpackhi_epi8(even, odd);
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  // 128 more in element j = 0 become 128 more (or less: the same) in every sum.
  const __m512i impulse = FourTimes(0x8080, 0);
  const __m512i first_low = _mm512_ternarylogic_epi64(first, nibble, impulse, 0xea);
  const __m512i first_high = _mm512_ternarylogic_epi64(_mm512_srli_epi16(first, 4), nibble, impulse, 0xea);
  const __m512i second_low = _mm512_and_si512(second, nibble);
  const __m512i second_high = _mm512_and_si512(_mm512_srli_epi16(second, 4), nibble);

  __m512i j00 = _mm512_unpacklo_epi16(first_low, first_high);
  __m512i j01 = _mm512_unpackhi_epi16(first_low, first_high);
  __m512i j10 = _mm512_unpacklo_epi16(second_low, second_high);
  __m512i j11 = _mm512_unpackhi_epi16(second_low, second_high);
  Butterfly(j00, j10);
  Butterfly(j01, j11);
  Butterfly(j00, j01);
  Butterfly(j10, j11);
  // A constant sums up in j = 0 alone: 4 * 32 there take the 128 away again.
  j00 = _mm512_add_epi8(j00, _mm512_set1_epi8(32));

  // From here on named by (j3, j1), then by (j0, j1).
  __m512i a00 = _mm512_unpacklo_epi32(j00, j01), a01 = _mm512_unpackhi_epi32(j00, j01);
  __m512i a10 = _mm512_unpacklo_epi32(j10, j11), a11 = _mm512_unpackhi_epi32(j10, j11);
  Butterfly(a00, a01);
  Butterfly(a10, a11);
  __m512i b00 = _mm512_unpacklo_epi64(a00, a10), b10 = _mm512_unpackhi_epi64(a00, a10);
  __m512i b01 = _mm512_unpacklo_epi64(a01, a11), b11 = _mm512_unpackhi_epi64(a01, a11);
  Butterfly(b00, b10);
  Butterfly(b01, b11);

  const __m512i low01 = _mm512_shuffle_i32x4(b00, b10, 0x44), high01 = _mm512_shuffle_i32x4(b00, b10, 0xee);
  const __m512i low23 = _mm512_shuffle_i32x4(b01, b11, 0x44), high23 = _mm512_shuffle_i32x4(b01, b11, 0xee);
  return {{_mm512_shuffle_i32x4(low01, low23, 0x88), _mm512_shuffle_i32x4(low01, low23, 0xdd),
           _mm512_shuffle_i32x4(high01, high23, 0x88), _mm512_shuffle_i32x4(high01, high23, 0xdd)}};
}

/// The butterflies h = 16 and 32 as dot products with rows of 2 * H4, which widen to integers on the bits of
/// kIntegerOrigin: quarter q of H64 z, z = 2c + offset.
struct LastStages {
  __m512i origin, origin_first;

  explicit LastStages(int32_t offset) {
    const int32_t bits = std::bit_cast<int32_t>(kIntegerOrigin);
    origin = _mm512_set1_epi32(bits);
    // Four times 2 * 128 too much, and in element 0 (which has no 128) 64 times the offset.
    origin_first = _mm512_mask_set1_epi32(_mm512_set1_epi32(bits - 1024), 1, bits + 64 * offset);
  }
  template <int q>
  HWY_INLINE __m512 Quarter(__m512i half_rotated) const {
    constexpr int32_t kSigns[4] = {0x02020202, static_cast<int32_t>(0xfe02fe02),
                                   static_cast<int32_t>(0xfefe0202), 0x02fefe02};
    const __m512i weights = _mm512_set1_epi32(kSigns[q]);
    return _mm512_castsi512_ps(_mm512_dpbusd_epi32(q == 0 ? origin_first : origin, half_rotated, weights));
  }
};

/// One whole tile: (H64 z) * factor, exact before the store rounds it.
template <typename Sink>
HWY_INLINE void StoreRotatedBack(__m512i half_rotated, const LastStages& last, float factor, float origin,
                                 std::byte* target) {
  const __m512 scale = _mm512_set1_ps(factor), shift = _mm512_set1_ps(origin);
  Sink::Put(target, _mm512_fmadd_ps(last.Quarter<0>(half_rotated), scale, shift));
  Sink::Put(target + Sink::kStepBytes, _mm512_fmadd_ps(last.Quarter<1>(half_rotated), scale, shift));
  Sink::Put(target + 2 * Sink::kStepBytes, _mm512_fmadd_ps(last.Quarter<2>(half_rotated), scale, shift));
  Sink::Put(target + 3 * Sink::kStepBytes, _mm512_fmadd_ps(last.Quarter<3>(half_rotated), scale, shift));
}

/// z of every code.
HWY_INLINE __m512 GridOf(int32_t offset) {
  const __m512 code = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_fmadd_ps(code, _mm512_set1_ps(2), _mm512_set1_ps(static_cast<float>(offset)));
}

/// The first `quarters` times 16 elements of a tile as z * factor: a table of all sixteen values, looked up.
template <typename Sink>
HWY_INLINE void StoreGrid(const PackedCodes& codes, uint32_t slot, __m512 grid, float factor,
                          uint32_t quarters, std::byte* target) {
  // A zero factor gives +0 for every code.
  const __m512 values = _mm512_fmadd_ps(grid, _mm512_set1_ps(factor), _mm512_setzero_ps());
  if constexpr (Sink::kType == DType::kFp32) {
    const __m512i even = _mm512_permutexvar_epi8(TileToDwords(slot), codes.even);
    const __m512i odd = _mm512_permutexvar_epi8(TileToDwords(slot), codes.odd);
    const __m512i quarter_codes[4] = {even, odd, _mm512_srli_epi32(even, 4), _mm512_srli_epi32(odd, 4)};
#pragma GCC unroll 4
    for (uint32_t q = 0; q < 4; ++q) {
      if (q >= quarters) break;
      Sink::Put(target + q * Sink::kStepBytes, _mm512_permutexvar_ps(quarter_codes[q], values));
    }
  } else {
    const __m512i table = _mm512_broadcast_i64x4(Narrow<Sink::kType>(values));
    const __m512i words = _mm512_permutex2var_epi8(codes.even, TileToWords(slot), codes.odd);
    const __m512i first = _mm512_permutexvar_epi16(words, table);
    const __m512i second = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
    if (quarters == 4) {
      StoreVector<Sink::kStores>(target, first);
      StoreVector<Sink::kStores>(target + 64, second);
      return;
    }
    if (quarters >= 2) StoreVector<Sink::kStores>(target, first);
    if (quarters == 1) StoreHalfVector<Sink::kStores>(target, _mm512_castsi512_si256(first));
    if (quarters == 3) StoreHalfVector<Sink::kStores>(target + 64, _mm512_castsi512_si256(second));
  }
}

/// The codes of one step. `low` may be null: then those bits are zero.
template <uint32_t kTiles>
HWY_INLINE PackedCodes ReadCodes(const PlaneReader& reader, const uint8_t* high, const uint8_t* low,
                                 uint64_t byte) {
  const __m512i high_plane = reader.Read<kTiles>(high + byte);
  if (low == nullptr) return PackCodes(high_plane, _mm512_setzero_si512());
  return PackCodes(high_plane, reader.Read<kTiles>(low + byte));
}

template <typename Sink, uint32_t kTiles, VForm kForm>
void DecodeV(const DequantizeArgs& args, uint32_t head, const RowSteps& steps, const PlaneReader& reader,
             const HeadRanges& ranges, const simd::RowTargets& targets) {
  const uint64_t row_bytes = steps.dim / 4, first_row = PlaneRow(args.shape, head, 0);
  const uint8_t* const high_rows = args.in.v_high + first_row * row_bytes;
  const uint8_t* const low_rows = args.in.v_low != nullptr ? args.in.v_low + first_row * row_bytes : nullptr;
  const int32_t offset = low_rows != nullptr ? kVOffsetInt4 : kVOffsetInt2;
  const LastStages last(offset);
  const __m512 grid = GridOf(offset);

  StepSlots<kTiles, Sink::kElementBytes> slots(args.shape, steps, targets.V(head), targets.token_offset);
  uint32_t token = slots.first_token();
  if (token >= slots.tokens()) return;  // all rows are raw
  PackedCodes codes = ReadCodes<kTiles>(reader, high_rows, low_rows, token * row_bytes);
  HalfRotated half_rotated = {};
  if constexpr (kForm == VForm::kPlain) half_rotated = RotateSixteens(codes);
  while (token < slots.tokens()) {
    // The butterflies of the next step run beside the rest of this one: they are long chains that depend on
    // each other, and few.
    const uint32_t next_token = token + steps.rows;
    const uint64_t next_byte = (next_token < slots.tokens() ? next_token : token) * row_bytes;
    const PackedCodes next_codes = ReadCodes<kTiles>(reader, high_rows, low_rows, next_byte);
    HalfRotated next_half_rotated = {};
    if constexpr (kForm == VForm::kPlain) next_half_rotated = RotateSixteens(next_codes);

    slots.MoveTo(token);
    const float* factor = ranges.v_factor + token * steps.tiles;
    const float* origin = ranges.v_origin + token * steps.tiles;
#pragma GCC unroll 4
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t quarters = slots.Quarters(slot);
      if constexpr (kForm == VForm::kRotated) {
        StoreGrid<Sink>(codes, slot, grid, factor[slot], quarters, slots.Target(slot));
      } else if (quarters == 4) {
        StoreRotatedBack<Sink>(half_rotated.tile[slot], last, factor[slot], origin[slot], slots.Target(slot));
      } else if (quarters > 0) {
        // Short tiles were never rotated: s / 2, not s / 16.
        StoreGrid<Sink>(codes, slot, grid, factor[slot] * 8, quarters, slots.Target(slot));
      }
    }
    token = next_token;
    codes = next_codes;
    half_rotated = next_half_rotated;
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
