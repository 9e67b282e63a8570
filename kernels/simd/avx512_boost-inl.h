// Demotion to INT2: which K channels are boosted, and their low bits. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_BOOST_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_BOOST_INL_H_

#include <immintrin.h>

#include "kernels/boost.h"
#include "kernels/simd/avx512_planes-inl.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

inline constexpr uint32_t kScalesPerVector = 32;
inline constexpr uint32_t kScaleVectors = kMaxHeadDim / kScalesPerVector;

/// The K scales of one head, as bits: they order as values do.
struct ScaleBits {
  __m512i scale[kScaleVectors];
  __mmask32 is_channel[kScaleVectors];
  uint32_t vectors;

  ScaleBits(const uint8_t* scales, uint32_t k_dim) {
    vectors = (k_dim + kScalesPerVector - 1) / kScalesPerVector;
    for (uint32_t i = 0; i < vectors; ++i) {
      const uint32_t left = k_dim - i * kScalesPerVector;
      is_channel[i] = left < kScalesPerVector ? (uint32_t{1} << left) - 1 : ~uint32_t{0};
      scale[i] = _mm512_maskz_loadu_epi16(is_channel[i], scales + 2 * i * kScalesPerVector);
    }
  }
  HWY_INLINE __mmask32 AtLeast(uint32_t i, uint32_t bits) const {
    return _mm512_mask_cmpge_epu16_mask(is_channel[i], scale[i],
                                        _mm512_set1_epi16(static_cast<int16_t>(bits)));
  }
  HWY_INLINE uint32_t CountAtLeast(uint32_t bits) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < vectors; ++i) count += static_cast<uint32_t>(_mm_popcnt_u32(AtLeast(i, bits)));
    return count;
  }
};

/// boosted: a bit for each of the nb channels with the largest scales, ties to the lower channel.
inline void SelectBoosted(const uint8_t* scales, uint32_t k_dim, uint32_t nb, uint64_t* boosted) {
  const ScaleBits bits(scales, k_dim);
  // The nb-th largest scale, from its highest bit down.
  uint32_t threshold = 0;
  for (uint32_t bit = 1u << 15; bit != 0; bit >>= 1) {
    if (bits.CountAtLeast(threshold | bit) >= nb) threshold |= bit;
  }
  const uint32_t above = threshold == 0xffff ? 0 : bits.CountAtLeast(threshold + 1);
  uint32_t ties_left = nb - above;
  for (uint32_t i = 0; i < bits.vectors; ++i) {
    const __mmask32 is_above = threshold == 0xffff ? 0 : bits.AtLeast(i, threshold + 1);
    const uint32_t ties = bits.AtLeast(i, threshold) & ~is_above;
    // The lowest ties_left of them.
    const uint32_t taken = _pdep_u32(_bzhi_u32(~uint32_t{0}, ties_left < 32 ? ties_left : 32), ties);
    ties_left -= static_cast<uint32_t>(_mm_popcnt_u32(taken));
    const uint64_t channels = is_above | taken;
    if (i % 2 == 0) {
      boosted[i / 2] = channels;
    } else {
      boosted[i / 2] |= channels << 32;
    }
  }
}

/// ids[nb], ascending, and their places in the rows of a step: `low` rows to boost rows.
inline void PlanBoost(const uint64_t* boosted, const RowSteps& steps, uint32_t nb, uint8_t* ids,
                      FieldGather& gather) {
  gather = {};
  const uint32_t row_bytes = steps.dim / 4, boost_row_bytes = nb / 4;
  uint32_t index = 0;
  for (uint32_t tile = 0; tile < steps.tiles; ++tile) {
    for (uint64_t left = boosted[tile]; left != 0; left &= left - 1, ++index) {
      const uint32_t channel = tile * kTileCodes + static_cast<uint32_t>(_tzcnt_u64(left));
      ids[index] = static_cast<uint8_t>(channel);
      const PlaneField from = FieldOf(steps.dim, channel), to = FieldOf(nb, index);
      for (uint32_t row = 0; row < steps.rows; ++row)
        gather.Want(row * boost_row_bytes + to.byte, to.field, row * row_bytes + from.byte, from.field);
    }
  }
}

/// GatherBoostBits for all heads.
inline void GatherBoostLayer(const GatherBoostArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t nb = shape.nb, k_dim = shape.k_dim;
  if (nb == 0) return;
  const RowSteps steps(k_dim);
  const __mmask64 low_bytes = FirstBytes(steps.rows * k_dim / 4),
                  boost_bytes = FirstBytes(steps.rows * nb / 4);
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    uint64_t boosted[kMaxHeadDim / kTileCodes];
    FieldGather gather;
    SelectBoosted(args.in.k_scale + 2 * uint64_t{head} * k_dim, k_dim, nb, boosted);
    PlanBoost(boosted, steps, nb, args.out.boost_ids + uint64_t{head} * nb, gather);
    for (uint32_t token = 0; token < PaddedTokens(shape); token += steps.rows) {
      const uint64_t row = PlaneRow(shape, head, token);
      const uint8_t* low = args.in.k_low + row * (k_dim / 4);
      PrefetchAhead(low);
      const __m512i fields = gather(_mm512_maskz_loadu_epi8(low_bytes, low));
      _mm512_mask_storeu_epi8(args.out.boost_low + row * (nb / 4), boost_bytes, fields);
    }
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
