// A layer of the plane family: which decoder for which destination. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_DECODE_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_DECODE_INL_H_

#include "kernels/simd/avx512_decode_k-inl.h"
#include "kernels/simd/avx512_decode_v-inl.h"
#include "kernels/simd/avx512_decode_v_int2-inl.h"
#include "kernels/team.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

using DecodeRows = void (*)(const DequantizeArgs& args, uint32_t head, const RowSteps& steps,
                            const PlaneReader& reader, const HeadRanges& ranges,
                            const simd::RowTargets& targets);

struct LayerDecoders {
  DecodeRows k, k_of_origin;  ///< the second where HeadRanges::takes_origin()
  DecodeRows v, v_int2;       ///< the second where HeadRanges::has_int2_scales(); null where there is none
};

template <typename Sink, OriginIn kOriginIn>
DecodeRows KDecoder(const RowSteps& steps) {
  if (!steps.IsEven()) return DecodeK<Sink, kRagged, kOriginIn>;
  return steps.tiles == 1   ? DecodeK<Sink, 1, kOriginIn>
         : steps.tiles == 2 ? DecodeK<Sink, 2, kOriginIn>
                            : DecodeK<Sink, 4, kOriginIn>;
}
template <typename Sink, VForm kForm>
DecodeRows VDecoder(const RowSteps& steps) {
  if (!steps.IsEven()) return DecodeV<Sink, kRagged, kForm>;
  return steps.tiles == 1   ? DecodeV<Sink, 1, kForm>
         : steps.tiles == 2 ? DecodeV<Sink, 2, kForm>
                            : DecodeV<Sink, 4, kForm>;
}
template <typename Sink>
DecodeRows VInt2Decoder(const RowSteps& steps) {
  if constexpr (Sink::kType == DType::kFp16) {
    if (!steps.IsEven()) return nullptr;
    return steps.tiles == 1   ? DecodeVInt2<Sink::kStores, 1>
           : steps.tiles == 2 ? DecodeVInt2<Sink::kStores, 2>
                              : DecodeVInt2<Sink::kStores, 4>;
  }
  return nullptr;
}
template <typename Sink>
LayerDecoders DecodersInto(const RowSteps& k_steps, const RowSteps& v_steps, VForm form) {
  return {.k = KDecoder<Sink, OriginIn::kCode>(k_steps),
          .k_of_origin = KDecoder<Sink, OriginIn::kMinimum>(k_steps),
          .v = form == VForm::kRotated ? VDecoder<Sink, VForm::kRotated>(v_steps)
                                       : VDecoder<Sink, VForm::kPlain>(v_steps),
          .v_int2 = form == VForm::kPlain ? VInt2Decoder<Sink>(v_steps) : nullptr};
}

/// All sections at once, so that memory's answers overlap.
inline void PrefetchSections(const DequantizeArgs& args) {
  const BlockShape& shape = args.shape;
  const uint64_t rows = PlaneRow(shape, shape.kv_heads, 0);
  PrefetchStart(args.in.k_scale, 2 * shape.k_dim);
  PrefetchStart(args.in.k_min, 2 * shape.k_dim);
  PrefetchStart(args.in.v_scale, rows * VGroups(shape));
  PrefetchStart(args.in.k_high, rows * shape.k_dim / 4);
  PrefetchStart(args.in.k_low, rows * shape.k_dim / 4);
  PrefetchStart(args.in.boost_ids, rows * shape.nb / 4);
  PrefetchStart(args.in.v_high, rows * shape.v_dim / 4);
  PrefetchStart(args.in.v_low, rows * shape.v_dim / 4);
}

/// One layer into rows of neighbouring channels.
template <DType dtype>
void DecodeLayer(const DequantizeArgs& args) {
  PrefetchSections(args);
  const simd::RowTargets targets(args);
  const RowSteps k_steps(args.shape.k_dim), v_steps(args.shape.v_dim);
  const PlaneReader k_reader(k_steps), v_reader(v_steps);
  const bool streams = args.out.stores == Stores::kStreaming && targets.AreAligned(args.shape);
  const VForm form = args.out.v_form;
  const LayerDecoders decoders = streams
                                     ? DecodersInto<Sink<dtype, Stores::kStreaming>>(k_steps, v_steps, form)
                                     : DecodersInto<Sink<dtype, Stores::kCached>>(k_steps, v_steps, form);
  HeadRanges ranges(args, k_steps, v_steps);
  for (uint32_t head = 0; head < args.shape.kv_heads; ++head) {
    if (ranges.Load(head)) {
      simd::DecodeRawRows(args, head, targets);
      (ranges.takes_origin() ? decoders.k_of_origin : decoders.k)(args, head, k_steps, k_reader, ranges,
                                                                  targets);
      (ranges.has_int2_scales() ? decoders.v_int2 : decoders.v)(args, head, v_steps, v_reader, ranges,
                                                                targets);
    } else {
      alignas(kScratchAlign) std::byte scratch[sizeof(DequantizeScratch)];
      Dequantize(SerialTeam(head, scratch), args);
    }
  }
  if (streams) _mm_sfence();
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
