// V of the plane family from its high plane alone, rotated back, to FP16: all of the rotation in bytes, then
// values looked up. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_DECODE_V_INT2_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_DECODE_V_INT2_INL_H_

#include <immintrin.h>

#include "kernels/simd/avx512_decode_head-inl.h"
#include "kernels/simd/avx512_planes-inl.h"
#include "kernels/simd/avx512_store-inl.h"
#include "kernels/simd/decode_layer.h"
#include "kernels/simd/int2_values.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

/// Two vectors of bytes. An element k1 k0 j3 j2 j1 j0 of its tile (the tile's byte j holds it in field k) is
/// found by one bit that names the vector, two that name the lane of 16 bytes and four for the byte.
struct BytePair {
  __m512i first, second;
};

/// One more stage, for the bit of the index that is highest inside lanes: it becomes the one that names the
/// vector, where a butterfly is an addition and a subtraction, and the one that did comes in last.
HWY_INLINE BytePair ButterflyOfBytes(const BytePair& from) {
  const __m512i low = _mm512_unpacklo_epi8(from.first, from.second),
                high = _mm512_unpackhi_epi8(from.first, from.second);
  return {_mm512_add_epi8(low, high), _mm512_sub_epi8(low, high)};
}

/// n of tiles (see int2_values.h), two at a time.
class Int2Rotation {
 public:
  Int2Rotation() {
    const __m256i bytes = _mm256_set_epi8(31, 23, 30, 22, 29, 21, 28, 20, 27, 19, 26, 18, 25, 17, 24, 16,  //
                                          15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    first_pair_ = _mm512_broadcast_i64x4(bytes);
    // Of two fields (the second times 4): sum - 3, of which 32 sum up to -96 in element 0; difference.
    sums_ = _mm512_set_epi64(0x00fffefd0100fffe, 0x020100ff03020100, 0x00fffefd0100fffe, 0x020100ff03020100,
                             0x03020100020100ff, 0x0100fffe00fffefd, 0x03020100020100ff, 0x0100fffe00fffefd);
    first_tile_ = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0);
    second_tile_ = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
  }
  /// Tiles 2 pair and 2 pair + 1 of a plane: lanes are k0 j3, bytes of a lane k1 j2 j1 j0.
  HWY_INLINE BytePair operator()(__m512i plane, uint32_t pair) const {
    // Lanes k0 (so far without a difference) and the tile, bytes j2 j1 j0 j3.
    const __m512i from = _mm512_add_epi8(first_pair_, _mm512_set1_epi8(static_cast<char>(32 * pair)));
    const __m512i fields = _mm512_permutexvar_epi8(from, plane);
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i low = _mm512_and_si512(fields, nibble);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(fields, 4), nibble);
    // Stages k0, by looking up both fields at once, and k1.
    const __m512i a = _mm512_shuffle_epi8(sums_, low), b = _mm512_shuffle_epi8(sums_, high);
    BytePair bytes = {_mm512_add_epi8(a, b), _mm512_sub_epi8(a, b)};
    bytes = ButterflyOfBytes(bytes);  // j2; bytes j1 j0 j3 k1
    bytes = ButterflyOfBytes(bytes);  // j1; j0 j3 k1 j2
    bytes = ButterflyOfBytes(bytes);  // j0; j3 k1 j2 j1
    bytes = ButterflyOfBytes(bytes);  // j3; k1 j2 j1 j0
    return {_mm512_permutex2var_epi64(bytes.first, first_tile_, bytes.second),
            _mm512_permutex2var_epi64(bytes.first, second_tile_, bytes.second)};
  }

 private:
  __m512i first_pair_, sums_, first_tile_, second_tile_;
};

/// 1 where all n of a tile are odd: their last bit is that of the sum of all codes.
HWY_INLINE uint32_t LastBit(const uint8_t* tile) {
  const uint64_t codes = Load64(tile) ^ Load64(tile + 8);
  return static_cast<uint32_t>(_mm_popcnt_u64(codes & 0x5555555555555555)) & 1;
}

/// One tile of FP16 from its n, in the order of Int2Rotation.
template <Stores kStores>
HWY_INLINE void StoreInt2Values(__m512i n, uint8_t scale_byte, uint32_t last_bit, std::byte* target) {
  const simd::Int2Scale& scale = simd::kInt2Scales[scale_byte];
  const simd::Int2Values& values = simd::kInt2Values[scale.first_values + last_bit];
  // A look-up takes the lower six bits of its byte: what is shifted into the others does not matter.
  const __m512i half = _mm512_srli_epi16(_mm512_abs_epi8(n), 1);
  const __m512i low = _mm512_permutexvar_epi8(half, _mm512_load_si512(values.low.data()));
  __m512i high = _mm512_permutexvar_epi8(half, _mm512_load_si512(values.high.data()));
  high = _mm512_subs_epu8(high, _mm512_set1_epi32(static_cast<int32_t>(scale.shift)));
  // high | (n & sign)
  high = _mm512_ternarylogic_epi64(high, n, _mm512_set1_epi32(static_cast<int32_t>(scale.sign)), 0xf8);
  StoreVector<kStores>(target, _mm512_unpacklo_epi8(low, high));
  StoreVector<kStores>(target + 64, _mm512_unpackhi_epi8(low, high));
}

/// Only where HeadRanges::has_int2_scales(), and for rows of whole tiles.
template <Stores kStores, uint32_t kTiles>
void DecodeVInt2(const DequantizeArgs& args, uint32_t head, const RowSteps& steps, const PlaneReader& reader,
                 const HeadRanges&, const simd::RowTargets& targets) {
  static_assert(kTiles != kRagged);
  constexpr uint32_t kRows = kSlots / kTiles;
  const uint64_t first_row = PlaneRow(args.shape, head, 0);
  const uint8_t* const rows = args.in.v_high + first_row * kTiles * kTileBytes;
  const uint8_t* const scales = args.in.v_scale + first_row * kTiles;
  const Int2Rotation rotate;
  StepSlots<kTiles, 2> slots(args.shape, steps, targets.V(head), targets.token_offset);
  for (uint32_t token = slots.first_token(); token < slots.tokens(); token += kRows) {
    const uint8_t* const step = rows + token * kTiles * kTileBytes;
    const __m512i plane = reader.Read<kTiles>(step);
    slots.MoveTo(token);
#pragma GCC unroll 2
    for (uint32_t pair = 0; pair < kSlots / 2; ++pair) {
      const BytePair n = rotate(plane, pair);
#pragma GCC unroll 2
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t slot = 2 * pair + i;
        StoreInt2Values<kStores>(i == 0 ? n.first : n.second, scales[token * kTiles + slot],
                                 LastBit(step + slot * kTileBytes), slots.Target(slot));
      }
    }
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
