#include <gtest/gtest.h>

#include <random>

#include "daemon/policy/frequency_sketch.h"
#include "daemon/policy/write_budget.h"

namespace kvtier {
namespace {

constexpr uint64_t kSeed = 11;

TEST(FrequencySketch, CountsUpToItsBound) {
  FrequencySketch sketch(1000);
  std::mt19937_64 random(kSeed);
  const uint64_t name = random();
  EXPECT_EQ(sketch.Count(name), 0u);
  for (uint32_t i = 1; i <= 20; ++i) {
    sketch.Add(name);
    EXPECT_EQ(sketch.Count(name), std::min(i, FrequencySketch::kMaxCount));
  }
}

TEST(FrequencySketch, TellsOftenFromSeldomAmongAsManyNamesAsItIsFor) {
  constexpr uint32_t kNames = 10'000;
  FrequencySketch sketch(kNames);
  std::mt19937_64 random(kSeed);
  std::vector<uint64_t> often(kNames / 10), seldom(kNames - often.size());
  for (uint64_t& name : often) name = random();
  for (uint64_t& name : seldom) name = random();
  for (int round = 0; round < 6; ++round)
    for (const uint64_t name : often) sketch.Add(name);
  for (const uint64_t name : seldom) sketch.Add(name);
  constexpr uint32_t kHalved = 3;  // lines are halved now and then
  uint32_t wrong = 0;
  for (const uint64_t name : often) EXPECT_GE(sketch.Count(name), kHalved);
  for (const uint64_t name : seldom) wrong += sketch.Count(name) >= kHalved;
  EXPECT_LT(wrong, seldom.size() / 50);
}

TEST(FrequencySketch, ForgetsWhatIsNotAskedForAnyMore) {
  constexpr uint32_t kNames = 1024;
  FrequencySketch sketch(kNames);
  std::mt19937_64 random(kSeed);
  const uint64_t once_popular = random();
  for (int i = 0; i < 15; ++i) sketch.Add(once_popular);
  for (uint32_t i = 0; i < 10 * kNames * 4; ++i) sketch.Add(random() | 1);
  EXPECT_LT(sketch.Count(once_popular), 15u);
}

TEST(FrequencySketch, TakesAFewBytesAName) {
  EXPECT_LE(FrequencySketch(1 << 20).bytes(), (1 << 20) * 4u);
  EXPECT_LE(FrequencySketch(UINT64_MAX).bytes(), FrequencySketch::kMaxNames * 4);
  FrequencySketch least(0);
  least.Add(5);
  EXPECT_EQ(least.Count(5), 1u);
}

TimePoint At(double hours) {
  return TimePoint{std::chrono::seconds(1'000'000)} +
         std::chrono::duration_cast<Duration>(std::chrono::duration<double>(hours * 3600));
}

/// As after some hours in which nothing was written.
WriteBudget Filled(uint64_t bytes_per_day) {
  WriteBudget budget(bytes_per_day);
  EXPECT_TRUE(budget.Allows(0, At(-2)));
  EXPECT_TRUE(budget.Allows(0, At(0)));
  return budget;
}

TEST(WriteBudget, WithoutALimitAllowsEverything) {
  WriteBudget budget(0);
  budget.Spend(UINT64_MAX / 2);
  EXPECT_TRUE(budget.Allows(UINT64_MAX, At(0)));
}

TEST(WriteBudget, AStartGivesAMinutesShareAndNoHour) {
  constexpr uint64_t kAMinute = 100;
  WriteBudget budget(24 * 60 * kAMinute);
  EXPECT_EQ(budget.left_bytes(), kAMinute);
  EXPECT_TRUE(budget.Allows(kAMinute, At(0)));
  EXPECT_FALSE(budget.Allows(kAMinute + 1, At(0)));
  EXPECT_TRUE(budget.Allows(60 * kAMinute, At(1)));
}

TEST(WriteBudget, AllowsAnHourAtOnceAndThenTheDaysRate) {
  WriteBudget budget = Filled(24'000);
  EXPECT_TRUE(budget.Allows(1000, At(0)));
  budget.Spend(1000);
  EXPECT_FALSE(budget.Allows(1, At(0)));
  EXPECT_FALSE(budget.Allows(600, At(0.5)));
  EXPECT_TRUE(budget.Allows(500, At(0.51)));
  // It holds no more than an hour's share.
  EXPECT_TRUE(budget.Allows(1000, At(100)));
  budget.Spend(1000);
  EXPECT_FALSE(budget.Allows(100, At(100)));
}

TEST(WriteBudget, WhatWasWrittenAnywayIsMadeUpFor) {
  WriteBudget budget = Filled(24'000);
  budget.Spend(3000);
  EXPECT_EQ(budget.left_bytes(), 0u);
  EXPECT_FALSE(budget.Allows(1, At(0)));
  EXPECT_FALSE(budget.Allows(1, At(1.9)));
  EXPECT_TRUE(budget.Allows(90, At(2.1)));
}

TEST(WriteBudget, ABlockLargerThanAnHoursShareWaitsForAFullBucket) {
  WriteBudget budget = Filled(24'000);
  EXPECT_TRUE(budget.Allows(5000, At(0)));
  budget.Spend(5000);
  EXPECT_FALSE(budget.Allows(5000, At(3)));
  EXPECT_TRUE(budget.Allows(5000, At(5.1)));
}

TEST(WriteBudget, TimeThatGoesBackwardsAddsNothing) {
  WriteBudget budget = Filled(24'000);
  EXPECT_TRUE(budget.Allows(1, At(10)));
  budget.Spend(1000);
  EXPECT_FALSE(budget.Allows(1, At(2)));
  EXPECT_FALSE(budget.Allows(1, At(10)));
}

}  // namespace
}  // namespace kvtier
