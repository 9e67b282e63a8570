#include "tests/bench/interleave.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "tiers/base/aligned_buffer.h"

namespace kvtier::bench {
namespace {

constexpr RoundLimits kTwoRounds = {.rounds = 2, .seconds = 60, .rounds_min = 2, .turn_seconds = 0};

TEST(InterleaveTest, EveryAlternativeHasOneTurnARoundInAlternatingOrder) {
  std::string order;
  const std::vector<Alternative> alternatives = {{"a", [&] { order += 'a'; }}, {"b", [&] { order += 'b'; }}};
  const Interleaved result = Interleaved::Run(alternatives, kTwoRounds);
  EXPECT_EQ(result.rounds(), 2u);
  ASSERT_GE(order.size(), 4u);
  EXPECT_EQ(order.substr(order.size() - 4), "abba");
}

TEST(InterleaveTest, ThePassWithTenTimesTheWorkIsSeveralTimesSlower) {
  std::atomic<uint64_t> sink = 0;
  const auto work = [&sink](uint32_t additions) {
    for (uint32_t i = 0; i < additions; ++i) sink.fetch_add(i);
  };
  const std::vector<Alternative> alternatives = {{"long", [&] { work(100'000); }},
                                                 {"short", [&] { work(10'000); }}};
  const Interleaved result = Interleaved::Run(alternatives, {.rounds = 9, .turn_seconds = 0});
  EXPECT_GT(result.SpeedRatio(1, 0), 3);
  EXPECT_LT(result.SpeedRatio(0, 1), 0.34);
  EXPECT_GT(result.Seconds(0), result.Seconds(1));
  const size_t both[] = {0, 1};
  EXPECT_LT(result.SpeedRatioToBest(0, both), 0.34);
}

TEST(InterleaveTest, ANonTemporalCopyIsACopy) {
  AlignedBuffer memory;
  const auto bytes = memory.Reserve(2 * 4096);
  ASSERT_TRUE(bytes.ok());
  const auto from = bytes->first(4096), to = bytes->last(4096);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  NonTemporalCopy(to.data(), from.data(), 4096 - 64);
  EXPECT_TRUE(std::equal(from.begin(), from.end() - 64, to.begin()));
  EXPECT_TRUE(std::all_of(to.end() - 64, to.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(InterleaveTest, EveryShareIsDoneOnce) {
  std::atomic<int> done[3] = {};
  RunShares(3, [&](uint32_t share) { done[share].fetch_add(1); });
  for (const auto& count : done) EXPECT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace kvtier::bench
