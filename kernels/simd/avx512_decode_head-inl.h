// What a head's rows have in common, ready for the AVX-512 decoders. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_DECODE_HEAD_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_DECODE_HEAD_INL_H_

#include <immintrin.h>

#include "kernels/dequantize.h"
#include "kernels/simd/avx512_codes_k-inl.h"
#include "kernels/simd/avx512_planes-inl.h"
#include "kernels/simd/avx512_store-inl.h"
#include "kernels/simd/int2_values.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

/// fp32 accumulators of integers: the bits of 1.5 * 2^23 plus n are those of 1.5 * 2^23 + n.
inline constexpr float kIntegerOrigin = 12582912.0f;

/// Whether there is a DecodeVInt2 for a layer.
inline bool TakesInt2Values(const DequantizeArgs& args, const RowSteps& v_steps) {
  return args.in.v_low == nullptr && args.out.v_form == VForm::kPlain && args.out.dtype == DType::kFp16 &&
         v_steps.IsEven();
}

/// Filled by Load for one head after the other. Loading fails where the rest of the path would not give the
/// reference's bytes: ranges that reach beyond fp16 (they need the clamp), damaged scales and boost ids.
class HeadRanges {
 public:
  alignas(64) float scale[kMaxHeadDim];
  alignas(64) float minimum[kMaxHeadDim];         ///< the INT2 one where codes have no low bits
  alignas(64) float origin_minimum[kMaxHeadDim];  ///< less kCodeOrigin * scale; exact if takes_origin()
  /// Per (token, group): what z is multiplied by (s/16, or s/2 where it stays rotated), and that times
  /// -kIntegerOrigin.
  alignas(64) float v_factor[kMaxTokens * kSlots];
  alignas(64) float v_origin[kMaxTokens * kSlots];
  BoostGather boost;

  HeadRanges(const DequantizeArgs& args, const RowSteps& k_steps, const RowSteps& v_steps)
      : args_(args), k_steps_(k_steps), takes_int2_values_(TakesInt2Values(args, v_steps)) {
    has_boost_ = args.in.boost_ids != nullptr && args.in.k_low == nullptr;
    if (!has_boost_) return;
    boost = {};
    const uint32_t nb = args.shape.nb;
    for (uint32_t i = 0; i < nb; ++i) {
      const PlaneField from = FieldOf(nb, i);
      boost_byte_[i] = static_cast<uint8_t>(from.byte);
      // Low bits go to bits 2 and 3 of a byte.
      boost_bits_[i] = static_cast<uint8_t>(2 * from.field - 2);
    }
  }

  bool has_boost() const { return has_boost_; }
  bool takes_origin() const { return takes_origin_; }
  bool has_int2_scales() const { return has_int2_scales_; }

  [[nodiscard]] bool Load(uint32_t head) {
    for (uint64_t& channels : boosted_) channels = 0;
    if (has_boost_ && !LoadBoost(head)) return false;
    if (!LoadK(head)) return false;
    has_int2_scales_ = takes_int2_values_ && AreInt2Scales(head);
    return has_int2_scales_ || LoadV(head);
  }

 private:
  /// Largest scale byte whose products stay inside fp16 in every form: s = 1024, |H64 z| <= 960, s / 16.
  static constexpr uint8_t kLargestScaleByte = 200;

  bool LoadK(uint32_t head) {
    const uint32_t k_dim = args_.shape.k_dim;
    const uint64_t first = uint64_t{head} * k_dim;
    const bool is_int2 = args_.in.k_low == nullptr;
    const __m512 limit = _mm512_set1_ps(kFp16Max);
    const __m512 code_origin = _mm512_set1_ps(kCodeOrigin);
    __mmask16 is_tame = 0xffff, is_exact = 0xffff;
    for (uint32_t c = 0; c < k_dim; c += kLanes) {
      const uint8_t* const scale_at = args_.in.k_scale + 2 * (first + c);
      const uint8_t* const minimum_at = args_.in.k_min + 2 * (first + c);
      Prefetch(scale_at + 2 * k_dim);  // of the next head
      Prefetch(minimum_at + 2 * k_dim);
      const __m512 s = LoadHalves(scale_at);
      const __m512 m = LoadHalves(minimum_at);
      const __m512 reach = _mm512_fmadd_ps(_mm512_abs_ps(s), _mm512_set1_ps(15), _mm512_abs_ps(m));
      is_tame &= _mm512_cmp_ps_mask(reach, limit, _CMP_LE_OQ);
      // 1.5 s is exact, so that this rounds once as 1.5 * s + m does.
      const auto boosted = static_cast<__mmask16>(boosted_[c / 64] >> c % 64);
      const __m512 int2 = _mm512_fmadd_ps(s, _mm512_set1_ps(1.5f), m);
      const __m512 least = is_int2 ? _mm512_mask_blend_ps(boosted, int2, m) : m;
      const __m512 added = _mm512_mul_ps(code_origin, s);
      const __m512 less = _mm512_sub_ps(least, added);
      // A sum is exact if it gives back both. (A negative scale would make -0 of a code of 0.)
      is_exact &= _mm512_cmp_ps_mask(_mm512_sub_ps(least, less), added, _CMP_EQ_OQ) &
                  _mm512_cmp_ps_mask(_mm512_add_ps(less, added), least, _CMP_EQ_OQ) &
                  ~_mm512_movepi32_mask(_mm512_castps_si512(s));
      _mm512_store_ps(scale + c, s);
      _mm512_store_ps(minimum + c, least);
      _mm512_store_ps(origin_minimum + c, less);
    }
    takes_origin_ = is_exact == 0xffff;
    return is_tame == 0xffff;
  }

  bool LoadV(uint32_t head) {
    const uint32_t groups = VGroups(args_.shape);
    const uint32_t scales = PaddedTokens(args_.shape) * groups;  // a multiple of 4
    const uint8_t* bytes = args_.in.v_scale + uint64_t{head} * scales;
    const __m512 part = _mm512_set1_ps(args_.out.v_form == VForm::kRotated ? 1.0f / 2 : 1.0f / 16);
    __m128i largest = _mm_setzero_si128();
    for (uint32_t i = 0; i < scales; i += kLanes) {
      const uint32_t left = scales - i;
      const __mmask16 lanes = static_cast<__mmask16>(_bzhi_u32(0xffff, left < kLanes ? left : kLanes));
      const __m128i scale_bytes = _mm_maskz_loadu_epi8(lanes, bytes + i);
      largest = _mm_max_epu8(largest, scale_bytes);
      const __m512 s = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(scale_bytes), 7));
      const __m512 factor = _mm512_mul_ps(s, part);
      _mm512_store_ps(v_factor + i, factor);
      _mm512_store_ps(v_origin + i, _mm512_mul_ps(factor, _mm512_set1_ps(-kIntegerOrigin)));
    }
    return _mm_cmpgt_epu8_mask(largest, _mm_set1_epi8(static_cast<char>(kLargestScaleByte))) == 0;
  }

  /// Whether DecodeVInt2 has all products of these scales.
  bool AreInt2Scales(uint32_t head) const {
    const uint32_t scales = PaddedTokens(args_.shape) * VGroups(args_.shape);
    const uint8_t* bytes = args_.in.v_scale + uint64_t{head} * scales;
    const __m512i least = _mm512_set1_epi8(static_cast<char>(simd::kInt2ScaleMin));
    const __m512i range = _mm512_set1_epi8(static_cast<char>(kLargestScaleByte - simd::kInt2ScaleMin));
    __mmask64 others = 0;
    for (uint32_t i = 0; i < scales; i += 64) {
      const __m512i scale = _mm512_maskz_loadu_epi8(FirstBytes(scales - i < 64 ? scales - i : 64), bytes + i);
      // One comparison for both ends: what is too small wraps around.
      others |= _mm512_mask_cmpgt_epu8_mask(_mm512_test_epi8_mask(scale, scale),
                                            _mm512_sub_epi8(scale, least), range);
    }
    return others == 0;
  }

  /// Ids are copied once: the image may change under the reader. Only ascending ids below k_dim are taken,
  /// since then every channel has at most one boost field.
  bool LoadBoost(uint32_t head) {
    const uint32_t nb = args_.shape.nb;
    const uint8_t* from = args_.in.boost_ids + uint64_t{head} * nb;
    alignas(64) uint8_t ids[kMaxHeadDim];
    bool is_ascending = true;
    for (uint32_t first = 0; first < nb; first += 64) {
      const __mmask64 own = FirstBytes(nb - first < 64 ? nb - first : 64);
      const __m512i now = _mm512_maskz_loadu_epi8(own, from + first);
      const __m512i before = _mm512_permutexvar_epi8(_mm512_loadu_si512(kOneBefore), now);
      is_ascending &= _mm512_mask_cmple_epu8_mask(own & ~uint64_t{1}, now, before) == 0;
      _mm512_store_si512(ids + first, now);
      is_ascending &= first == 0 || ids[first - 1] < ids[first];
    }
    if (!is_ascending || ids[nb - 1] >= args_.shape.k_dim) return false;
    FindBoosted(ids);
    SpreadBoost();
    return true;
  }

  /// boosted_, eight ids at a time: a shift by 64 and more, or by less than nothing, leaves no bit.
  void FindBoosted(const uint8_t* ids) {
    __m512i bits[kSlots] = {};
    for (uint32_t i = 0; i < args_.shape.nb; i += 8) {
      const __mmask8 own = args_.shape.nb - i >= 8u ? 0xff : 0x0f;
      const __m512i channel =
          _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(ids + i)));
      const __m512i one = _mm512_maskz_set1_epi64(own, 1);
      for (uint32_t tile = 0; tile < k_steps_.tiles; ++tile) {
        const __m512i in_tile = _mm512_sub_epi64(channel, _mm512_set1_epi64(tile * kTileCodes));
        bits[tile] = _mm512_or_si512(bits[tile], _mm512_sllv_epi64(one, in_tile));
      }
    }
    for (uint32_t tile = 0; tile < k_steps_.tiles; ++tile)
      boosted_[tile] = static_cast<uint64_t>(_mm512_reduce_or_epi64(bits[tile]));
  }

  /// The gather of this head: the i-th boosted channel takes field i of its row of the boost plane.
  void SpreadBoost() {
    uint32_t before = 0;
    for (uint32_t tile = 0; tile < k_steps_.tiles; ++tile) {
      const uint64_t channels = boosted_[tile];
      const __m512i byte = _mm512_maskz_expand_epi8(channels, _mm512_loadu_si512(boost_byte_ + before));
      const __m512i bits = _mm512_maskz_expand_epi8(channels, _mm512_loadu_si512(boost_bits_ + before));
      before += static_cast<uint32_t>(_mm_popcnt_u64(channels));
      // Plus 8 * (byte % 8); the instruction that takes it looks at six bits.
      const __m512i offset = _mm512_add_epi8(bits, _mm512_set1_epi64(0x3830282018100800));
      for (uint32_t row = 0; row < k_steps_.rows; ++row) {
        const uint32_t at = (row * k_steps_.tiles + tile) * kTileBytes;
        const __m512i row_start = _mm512_set1_epi8(static_cast<char>(row * args_.shape.nb / 4));
        const __m512i source =
            _mm512_mask_add_epi8(_mm512_set1_epi8(BoostGather::kZeroByte), channels, byte, row_start);
        StoreQuarter<0>(source, offset, at);
        StoreQuarter<1>(source, offset, at);
        StoreQuarter<2>(source, offset, at);
        StoreQuarter<3>(source, offset, at);
      }
    }
  }
  template <int q>
  HWY_INLINE void StoreQuarter(__m512i source, __m512i offset, uint32_t at) {
    _mm_store_si128(reinterpret_cast<__m128i*>(boost.source[q] + at), _mm512_extracti32x4_epi32(source, q));
    _mm_store_si128(reinterpret_cast<__m128i*>(boost.bit_offset[q] + at),
                    _mm512_extracti32x4_epi32(offset, q));
  }

  static HWY_INLINE __m512 LoadHalves(const uint8_t* halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  }

  /// For _mm512_permutexvar_epi8: byte i - 1 to byte i.
  static constexpr uint8_t kOneBefore[64] = {0,  0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,
                                             15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
                                             31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46,
                                             47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62};

  const DequantizeArgs& args_;
  const RowSteps k_steps_;
  bool has_boost_;
  const bool takes_int2_values_;
  bool takes_origin_ = false;
  bool has_int2_scales_ = false;
  uint64_t boosted_[kMaxHeadDim / 64] = {};    ///< channels of this head, by bit
  uint8_t boost_byte_[kMaxHeadDim + 64] = {};  ///< of a row of the boost plane, by index among ids
  uint8_t boost_bits_[kMaxHeadDim + 64] = {};
};

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
