// K of the plane family, four tiles at a time. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_DECODE_K_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_DECODE_K_INL_H_

#include <immintrin.h>

#include "kernels/simd/avx512_codes_k-inl.h"
#include "kernels/simd/avx512_decode_head-inl.h"
#include "kernels/simd/avx512_planes-inl.h"
#include "kernels/simd/avx512_store-inl.h"
#include "kernels/simd/decode_layer.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

/// The codes of one head, a step at a time.
template <uint32_t kTiles>
class KSteps {
 public:
  KSteps(const DequantizeArgs& args, uint32_t head, const RowSteps& steps, const PlaneReader& reader,
         const HeadRanges& ranges)
      : reader_(reader),
        boost_(ranges.boost),
        row_bytes_(steps.dim / 4),
        boost_row_bytes_(args.shape.nb / 4u),
        boost_bytes_(FirstBytes(static_cast<uint32_t>(steps.rows * boost_row_bytes_))) {
    const uint64_t first_row = PlaneRow(args.shape, head, 0);
    high_ = args.in.k_high + first_row * row_bytes_;
    if (args.in.k_low != nullptr) low_ = args.in.k_low + first_row * row_bytes_;
    if (ranges.has_boost()) boost_low_ = args.in.boost_low + first_row * boost_row_bytes_;
  }

  HWY_INLINE KCodes Read(uint32_t token) const {
    const __m512i high = reader_.Read<kTiles>(high_ + token * row_bytes_);
    if (low_ != nullptr) return CodesOfPlanes(high, reader_.Read<kTiles>(low_ + token * row_bytes_));
    KCodes codes = CodesOfHighPlane(high);
    if (boost_low_ == nullptr) return codes;
    const uint8_t* const boost = boost_low_ + token * boost_row_bytes_;
    PrefetchAhead(boost);
    boost_.AddTo(codes, _mm512_maskz_loadu_epi8(boost_bytes_, boost));
    return codes;
  }

 private:
  const PlaneReader& reader_;
  const BoostGather& boost_;
  const uint64_t row_bytes_, boost_row_bytes_;
  const __mmask64 boost_bytes_;
  const uint8_t* high_;
  const uint8_t* low_ = nullptr;
  const uint8_t* boost_low_ = nullptr;
};

/// Where kCodeOrigin, with which codes come, is taken away: once a channel, or from every code where a
/// channel has no fp32 for that.
enum class OriginIn : uint8_t { kMinimum, kCode };

/// One tile, or the first `quarters` times 16 elements of it.
template <typename Sink, OriginIn kOriginIn>
HWY_INLINE void DecodeKTile(const KCodes& codes, uint32_t slot, const __m512* scale, const __m512* minimum,
                            uint32_t quarters, std::byte* target) {
  const __m512 origin = _mm512_set1_ps(kCodeOrigin);
  const __m512i to_third = TileToThirdBytes(slot);
  const __mmask64 third = 0x4444444444444444;
#pragma GCC unroll 4
  for (uint32_t q = 0; q < 4; ++q) {
    if (q >= quarters) break;
    __m512 code = _mm512_castsi512_ps(
        _mm512_mask_permutexvar_epi8(_mm512_castps_si512(origin), third, to_third, codes.quarter[q]));
    if constexpr (kOriginIn == OriginIn::kCode) code = _mm512_sub_ps(code, origin);
    // The product is exact, and so is what the origin adds to it: this rounds once as c * s + m does.
    Sink::Put(target + q * Sink::kStepBytes, _mm512_fmadd_ps(code, scale[q], minimum[q]));
  }
}

template <typename Sink, uint32_t kTiles, OriginIn kOriginIn>
void DecodeK(const DequantizeArgs& args, uint32_t head, const RowSteps& steps, const PlaneReader& reader,
             const HeadRanges& ranges, const simd::RowTargets& targets) {
  // In registers where a row has one tile or two.
  constexpr uint32_t kVectors = (kTiles != kRagged ? kTiles : kSlots) * 4;
  __m512 scale[kVectors], minimum[kVectors];
  const float* const minima = kOriginIn == OriginIn::kMinimum ? ranges.origin_minimum : ranges.minimum;
  for (uint32_t i = 0; i < kVectors; ++i) {
    scale[i] = _mm512_load_ps(ranges.scale + i * kLanes);
    minimum[i] = _mm512_load_ps(minima + i * kLanes);
  }
  const KSteps<kTiles> rows(args, head, steps, reader, ranges);
  StepSlots<kTiles, Sink::kElementBytes> slots(args.shape, steps, targets.K(head), targets.token_offset);
  uint32_t token = slots.first_token();
  if (token >= slots.tokens()) return;  // all rows are raw
  KCodes next = rows.Read(token);
  for (; token < slots.tokens(); token += steps.rows) {
    const KCodes codes = next;
    const uint32_t next_token = token + steps.rows;
    next = rows.Read(next_token < slots.tokens() ? next_token : token);
    slots.MoveTo(token);
#pragma GCC unroll 4
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t first = slots.Tile(slot) * 4;
      DecodeKTile<Sink, kOriginIn>(codes, slot, scale + first, minimum + first, slots.Quarters(slot),
                                   slots.Target(slot));
    }
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
