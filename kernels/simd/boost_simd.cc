#include "kernels/simd/boost_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/boost_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/highway.h>

#include "kernels/simd/avx512_boost-inl.h"
#include "kernels/team.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

void GatherBoost(const GatherBoostArgs& args) {
#if HWY_TARGET == HWY_AVX3_DL
  GatherBoostLayer(args);
#else
  // Without byte permutations the portable body is as good as vectors.
  LaunchSerial(GatherBoostLaunch(args.shape), [&](const SerialTeam& team) { GatherBoostBits(team, args); });
#endif
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

HWY_EXPORT(GatherBoost);

void GatherBoostSimd(const GatherBoostArgs& args) {
  HWY_DYNAMIC_DISPATCH(GatherBoost)(args);
}

}  // namespace kvtier
#endif
