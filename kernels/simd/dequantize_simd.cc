#include "kernels/simd/dequantize_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/dequantize_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/highway.h>

#include "kernels/team.h"
#if HWY_TARGET == HWY_AVX3_DL
#include "kernels/simd/avx512_decode-inl.h"
#elif HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "kernels/simd/decode_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

void DequantizePortably(const DequantizeArgs& args) {
  LaunchSerial(DequantizeLaunch(args.shape), [&](const SerialTeam& team) { Dequantize(team, args); });
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
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
      return DequantizePortably(args);
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
