#include "kernels/simd/dequantize_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/dequantize_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <memory>

#include "kernels/simd/avx512_decode-inl.h"
#include "kernels/simd/convert_simd.h"
#include "kernels/simd/decode_rows-inl.h"
#include "kernels/simd/target_vectors-inl.h"
#include "kernels/team.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

void DequantizePortably(const DequantizeArgs& args) {
  LaunchSerial(DequantizeLaunch(args.shape), [&](const SerialTeam& team) { Dequantize(team, args); });
}

#if HWY_TARGET == HWY_SCALAR
void DequantizeLayer(const DequantizeArgs& args) {
  DequantizePortably(args);
}
#else
template <DType dtype>
void DecodeRowsOf(const DequantizeArgs& args) {
#if HWY_TARGET == HWY_AVX3_DL
  DecodeLayer<dtype>(args);
#else
  DecodeLayerByRows<dtype>(args);
#endif
}

/// Decoded rows in fp32, as StoreTile takes them: out16 without its rounding.
struct DecodedRow {
  const float* values;

  HWY_INLINE Floats At(size_t i) const { return ClampVector(hn::LoadU(FloatTag(), values + i)); }
};

/// FP8 destinations: every head in fp32 first, small enough for the second cache, then the conversion of all
/// other codecs.
void DecodeToFp8(const DequantizeArgs& args) {
  const BlockShape& shape = args.shape;
  const KvLayerView& out = args.out;
  const size_t dim = std::max(shape.k_dim, shape.v_dim), v_at = shape.tokens * dim;
  const auto decoded = std::make_unique_for_overwrite<float[]>(2 * v_at);
  DequantizeArgs head_args = args;
  head_args.shape.kv_heads = 1;
  head_args.out = {.k = reinterpret_cast<std::byte*>(decoded.get()),
                   .v = reinterpret_cast<std::byte*>(decoded.get() + v_at),
                   .token_stride = static_cast<int64_t>(dim * sizeof(float)),
                   .channel_stride = sizeof(float),
                   .dtype = DType::kFp32,
                   .v_form = out.v_form};
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    head_args.in = HeadSections(shape, args.in, head);
    DecodeRowsOf<DType::kFp32>(head_args);
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      const float* row = decoded.get() + token * dim;
      StoreRow(DecodedRow{row}, shape.k_dim, out, out.scales.k, out.k + out.Row(head, token));
      StoreRow(DecodedRow{row + v_at}, shape.v_dim, out, out.scales.v, out.v + out.Row(head, token));
    }
  }
  if (out.stores == Stores::kStreaming) hwy::FlushStream();
}

void DequantizeLayer(const DequantizeArgs& args) {
  if (args.out.channel_stride != DTypeBytes(args.out.dtype)) {
    DequantizePortably(args);
    return;
  }
  switch (args.out.dtype) {
    case DType::kFp16:
      return DecodeRowsOf<DType::kFp16>(args);
    case DType::kBf16:
      return DecodeRowsOf<DType::kBf16>(args);
    case DType::kFp32:
      return DecodeRowsOf<DType::kFp32>(args);
    case DType::kE4m3:
    case DType::kE5m2:
      return HasUsualScales(args.out.scales) ? DecodeToFp8(args) : DequantizePortably(args);
  }
}
#endif

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

HWY_EXPORT(DequantizeLayer);

void DequantizeSimd(const DequantizeArgs& args) {
  HWY_DYNAMIC_DISPATCH(DequantizeLayer)(args);
}

}  // namespace kvtier
#endif
