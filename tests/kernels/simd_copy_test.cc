#include "kernels/simd/copy_simd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/support/simd_level_test.h"

namespace kvtier {
namespace {

class SimdCopyTest : public SimdLevelTest {};

TEST_P(SimdCopyTest, CopiesAnyBytesFromAndToAnyAddressAndTouchesNothingElse) {
  constexpr size_t kRoom = 64;
  constexpr std::byte kUntouched{0xA5};
  std::array<std::byte, 512> source{};
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
    for (const size_t bytes : {0, 1, 63, 64, 65, 127, 128, 200, 320}) {
      for (size_t shift = 0; shift < kRoom; shift += 3) {
        std::vector<std::byte> target(bytes + 2 * kRoom, kUntouched);
        const std::byte* from = source.data() + shift % 16;
        CopySimd(target.data() + shift, from, bytes, stores);
        FinishStores(stores);
        const auto copied = target.begin() + static_cast<ptrdiff_t>(shift);
        const auto end = copied + static_cast<ptrdiff_t>(bytes);
        ASSERT_TRUE(std::equal(copied, end, from)) << bytes << " at " << shift;
        std::fill(copied, end, kUntouched);
        ASSERT_TRUE(std::ranges::all_of(target, [&](std::byte b) { return b == kUntouched; }));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SimdCopyTest, testing::ValuesIn(AllSimdLevels()), SimdLevelParamName);

}  // namespace
}  // namespace kvtier
