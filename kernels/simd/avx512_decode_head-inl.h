// What a head's rows have in common, ready for the AVX-512 decoders. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_DECODE_HEAD_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_DECODE_HEAD_INL_H_

#include <immintrin.h>

#include "kernels/dequantize.h"
#include "kernels/simd/avx512_planes-inl.h"
#include "kernels/simd/avx512_store-inl.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

/// fp32 accumulators of integers: the bits of 1.5 * 2^23 plus n are those of 1.5 * 2^23 + n.
inline constexpr float kIntegerOrigin = 12582912.0f;

/// Filled by Load for one head after the other. Loading fails where the rest of the path would not give the
/// reference's bytes: ranges that reach beyond fp16 (they need the clamp), damaged scales and boost ids.
class HeadRanges {
 public:
  alignas(64) float scale[kMaxHeadDim];
  alignas(64) float minimum[kMaxHeadDim];  ///< the INT2 one where codes have no low bits
  /// Per (token, group): what z is multiplied by (s/16, or s/2 where it stays rotated), and that times
  /// -kIntegerOrigin.
  alignas(64) float v_factor[kMaxTokens * kSlots];
  alignas(64) float v_origin[kMaxTokens * kSlots];
  FieldGather boost;

  HeadRanges(const DequantizeArgs& args, const RowSteps& k_steps) : args_(args), k_steps_(k_steps) {
    has_boost_ = args.in.boost_ids != nullptr && args.in.k_low == nullptr;
    if (!has_boost_) return;
    const uint32_t nb = args.shape.nb;
    for (uint32_t i = 0; i < nb; ++i) {
      const PlaneField from = FieldOf(nb, i);
      boost_byte_[i] = static_cast<uint8_t>(from.byte);
      boost_field_[i] = static_cast<uint8_t>(from.field);
    }
  }

  bool has_boost() const { return has_boost_; }

  [[nodiscard]] bool Load(uint32_t head) {
    for (uint64_t& channels : boosted_) channels = 0;
    if (has_boost_ && !LoadBoost(head)) return false;
    return LoadK(head) && LoadV(head);
  }

 private:
  /// Largest scale byte whose products stay inside fp16 in every form: s = 1024, |H64 z| <= 960, s / 16.
  static constexpr uint8_t kLargestScaleByte = 200;

  bool LoadK(uint32_t head) {
    const uint32_t k_dim = args_.shape.k_dim;
    const uint64_t first = uint64_t{head} * k_dim;
    const bool is_int2 = args_.in.k_low == nullptr;
    const __m512 limit = _mm512_set1_ps(kFp16Max);
    __mmask16 is_tame = 0xffff;
    for (uint32_t c = 0; c < k_dim; c += kLanes) {
      const __m512 s = LoadHalves(args_.in.k_scale + 2 * (first + c));
      const __m512 m = LoadHalves(args_.in.k_min + 2 * (first + c));
      const __m512 reach = _mm512_fmadd_ps(_mm512_abs_ps(s), _mm512_set1_ps(15), _mm512_abs_ps(m));
      is_tame &= _mm512_cmp_ps_mask(reach, limit, _CMP_LE_OQ);
      // 1.5 s is exact, so that this rounds once as 1.5 * s + m does.
      const auto boosted = static_cast<__mmask16>(boosted_[c / 64] >> c % 64);
      const __m512 int2 = _mm512_fmadd_ps(s, _mm512_set1_ps(1.5f), m);
      _mm512_store_ps(scale + c, s);
      _mm512_store_ps(minimum + c, is_int2 ? _mm512_mask_blend_ps(boosted, int2, m) : m);
    }
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

  /// Ids are copied once: the image may change under the reader. Only ascending ids below k_dim are taken,
  /// since then every channel has at most one boost field.
  bool LoadBoost(uint32_t head) {
    const uint32_t nb = args_.shape.nb, k_dim = args_.shape.k_dim;
    const uint8_t* from = args_.in.boost_ids + uint64_t{head} * nb;
    uint8_t ids[kMaxHeadDim];
    memcpy(ids, from, nb);
    bool is_ascending = ids[nb - 1] < k_dim;
    for (uint32_t i = 1; i < nb; ++i) is_ascending &= ids[i - 1] < ids[i];
    if (!is_ascending) return false;
    for (uint32_t tile = 0, i = 0; tile < k_steps_.tiles; ++tile) {
      uint64_t channels = 0;
      for (; i < nb && ids[i] < (tile + 1) * kTileCodes; ++i) channels |= uint64_t{1} << ids[i] % kTileCodes;
      boosted_[tile] = channels;
    }
    SpreadBoost();
    return true;
  }

  /// The gather of this head: the i-th boosted channel takes field i of its row of the boost plane.
  void SpreadBoost() {
    const uint32_t row_bytes = args_.shape.nb / 4;
    uint32_t before = 0;
    for (uint64_t& wanted : boost.wanted) wanted = 0;
    for (uint32_t tile = 0; tile < k_steps_.tiles; ++tile) {
      const uint64_t channels = boosted_[tile];
      alignas(64) uint8_t byte_of[64], field_of[64];
      _mm512_store_si512(byte_of,
                         _mm512_maskz_expand_epi8(channels, _mm512_loadu_si512(boost_byte_ + before)));
      _mm512_store_si512(field_of,
                         _mm512_maskz_expand_epi8(channels, _mm512_loadu_si512(boost_field_ + before)));
      before += static_cast<uint32_t>(_mm_popcnt_u64(channels));
      for (uint32_t k = 0; k < 4; ++k) {
        const __m128i source = _mm_load_si128(reinterpret_cast<const __m128i*>(byte_of + k * kTileBytes));
        const __m128i field = _mm_load_si128(reinterpret_cast<const __m128i*>(field_of + k * kTileBytes));
        // 8 * (byte % 8) + 2 * field - 2k, modulo 64 by the instruction that takes it
        const __m128i byte_bits = _mm_set1_epi64x(0x3830282018100800);
        const __m128i offset = _mm_sub_epi8(_mm_add_epi8(byte_bits, _mm_add_epi8(field, field)),
                                            _mm_set1_epi8(static_cast<char>(2 * k)));
        const uint64_t wanted = channels >> k * kTileBytes & 0xffff;
        for (uint32_t row = 0; row < k_steps_.rows; ++row) {
          const uint32_t slot = row * k_steps_.tiles + tile;
          const __m128i row_start = _mm_set1_epi8(static_cast<char>(row * row_bytes));
          _mm_store_si128(reinterpret_cast<__m128i*>(boost.source[k] + slot * kTileBytes),
                          _mm_add_epi8(source, row_start));
          _mm_store_si128(reinterpret_cast<__m128i*>(boost.bit_offset[k] + slot * kTileBytes), offset);
          boost.wanted[k] |= wanted << slot * kTileBytes;
        }
      }
    }
  }

  static HWY_INLINE __m512 LoadHalves(const uint8_t* halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  }

  const DequantizeArgs& args_;
  const RowSteps k_steps_;
  bool has_boost_;
  uint64_t boosted_[kMaxHeadDim / 64] = {};    ///< channels of this head, by bit
  uint8_t boost_byte_[kMaxHeadDim + 64] = {};  ///< of a row of the boost plane, by index among ids
  uint8_t boost_field_[kMaxHeadDim + 64] = {};
};

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
