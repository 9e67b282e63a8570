#include "kernels/simd/dequantize_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/dequantize_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/highway.h>

#include "kernels/simd/avx512_decode-inl.h"
#include "kernels/team.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

void DequantizeLayer(const DequantizeArgs& args) {
  const auto portable = [&](const SerialTeam& team) { Dequantize(team, args); };
#if HWY_TARGET == HWY_AVX3_DL
  const bool is_fp8 = IsFp8(args.out.dtype);
  if (!is_fp8 && args.out.channel_stride == DTypeBytes(args.out.dtype)) {
    DecodeLayer(args);
    return;
  }
#endif
  LaunchSerial(DequantizeLaunch(args.shape), portable);
}

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
