#include "kernels/simd/dispatch.h"

// clang-format off
#include "kernels/simd/targets.h"
// clang-format on

#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tiers/base/check.h"

namespace kvtier {
namespace {

struct Level {
  SimdLevel level;
  std::string_view name;
  int64_t targets;  ///< of Highway: this one and those below
};

#if HWY_ARCH_X86
constexpr std::array kLevels = {
    Level{SimdLevel::kPortable, "portable", HWY_SCALAR},
    Level{SimdLevel::kAvx2, "avx2", HWY_AVX2},
    Level{SimdLevel::kAvx512, "avx512", HWY_AVX3},
    Level{SimdLevel::kAvx512Vnni, "avx512-vnni", HWY_AVX3_DL},
};
#else
constexpr std::array kLevels = {
    Level{SimdLevel::kPortable, "portable", HWY_SCALAR},
    Level{SimdLevel::kNeon, "neon", HWY_NEON},
};
#endif

std::vector<SimdLevel> FindLevels() {
  const int64_t supported = hwy::SupportedTargets();
  std::vector<SimdLevel> found = {SimdLevel::kPortable};
  for (const Level& level : kLevels) {
    if (level.level != SimdLevel::kPortable && (supported & level.targets) != 0) found.push_back(level.level);
  }
  return found;
}

}  // namespace

std::span<const SimdLevel> AvailableSimdLevels() {
  // Asked of the CPU once, before any limit is set.
  static const std::vector<SimdLevel> levels = FindLevels();
  return levels;
}

std::string_view SimdLevelName(SimdLevel level) {
  return std::ranges::find(kLevels, level, &Level::level)->name;
}

SimdLevel CurrentSimdLevel() {
  const std::span<const SimdLevel> available = AvailableSimdLevels();
  const int64_t supported = hwy::SupportedTargets();
  SimdLevel widest = SimdLevel::kPortable;
  for (const Level& level : kLevels) {
    const bool is_available = std::ranges::find(available, level.level) != available.end();
    if (is_available && (supported & level.targets) != 0) widest = level.level;
  }
  return widest;
}

void LimitSimd(SimdLevel level) {
  const std::span<const SimdLevel> available = AvailableSimdLevels();
  KVTIER_CHECK(std::ranges::find(available, level) != available.end());
  int64_t targets = 0;
  for (const Level& known : kLevels) {
    if (known.level <= level) targets |= known.targets;
  }
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().DeInit();  // the next dispatch looks again
}

}  // namespace kvtier
