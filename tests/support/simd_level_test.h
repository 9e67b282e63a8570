#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/simd/dispatch.h"

namespace kvtier {

/// Tests that run once on each SIMD level of this CPU.
class SimdLevelTest : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { LimitSimd(GetParam()); }
  void TearDown() override { LimitSimd(AvailableSimdLevels().back()); }
};

inline std::vector<SimdLevel> AllSimdLevels() {
  return {AvailableSimdLevels().begin(), AvailableSimdLevels().end()};
}
inline std::string SimdLevelParamName(const testing::TestParamInfo<SimdLevel>& info) {
  std::string name(SimdLevelName(info.param));
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace kvtier
