#include "tiers/base/io_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvtier {
namespace {

constexpr uint64_t kChunk = IoMemory::kChunkBytes;

TEST(IoMemory, LendsAllOfItOnceAndRunsThatWereGivenBack) {
  IoMemory memory;
  std::vector<std::span<std::byte>> taken;
  for (uint64_t i = 0; i < IoMemory::kChunks / 2; ++i) {
    taken.push_back(memory.Take(kChunk + 4096));
    ASSERT_EQ(taken.back().size(), 2 * kChunk);
    std::ranges::fill(taken.back(), static_cast<std::byte>(i + 1));
  }
  EXPECT_TRUE(memory.Take(1).empty()) << "nothing is left";
  for (uint64_t i = 0; i < taken.size(); ++i) {
    const auto mine = [&](std::byte b) { return b == static_cast<std::byte>(i + 1); };
    EXPECT_TRUE(std::ranges::all_of(taken[i], mine)) << "lent twice: " << i;
  }
  memory.Give(taken[3]);
  memory.Give(taken[5]);
  EXPECT_TRUE(memory.Take(3 * kChunk).empty()) << "no run is so long";
  EXPECT_EQ(memory.Take(2 * kChunk).data(), taken[3].data());
  memory.Give(taken[4]);
  EXPECT_EQ(memory.Take(4 * kChunk).data(), taken[4].data()) << "two runs side by side are one";
}

TEST(IoMemory, LendsOneRunOfEverythingAndNothingLonger) {
  IoMemory memory;
  EXPECT_TRUE(memory.Take(IoMemory::kBytes + 1).empty());
  EXPECT_TRUE(memory.Take(0).empty());
  memory.Give({});
  const std::span<std::byte> all = memory.Take(IoMemory::kBytes);
  EXPECT_EQ(all.data(), memory.all().data());
  EXPECT_EQ(all.size(), IoMemory::kBytes);
  memory.Give(all);
  EXPECT_EQ(memory.Take(IoMemory::kBytes).data(), all.data());
}

}  // namespace
}  // namespace kvtier
