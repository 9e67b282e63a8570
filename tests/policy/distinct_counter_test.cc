#include "daemon/policy/distinct_counter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvtier {
namespace {

TEST(DistinctCounter, FewNamesAreCountedAlmostExactly) {
  std::mt19937_64 random(1);
  DistinctCounter counter;
  EXPECT_EQ(counter.Estimate(), 0u);
  for (uint64_t names = 1; names <= 100; ++names) {
    counter.Add(random());
    EXPECT_NEAR(static_cast<double>(counter.Estimate()), static_cast<double>(names), 3) << names;
  }
}

TEST(DistinctCounter, ANameThatComesAgainIsNotCounted) {
  std::mt19937_64 random(2);
  std::vector<uint64_t> names(5000);
  std::ranges::generate(names, random);
  DistinctCounter counter;
  for (const uint64_t name : names) counter.Add(name);
  const uint64_t once = counter.Estimate();
  for (int i = 0; i < 10; ++i) {
    for (const uint64_t name : names) counter.Add(name);
  }
  EXPECT_EQ(counter.Estimate(), once);
}

TEST(DistinctCounter, ManyNamesAreCountedWithinFivePercentAndNeverFewerThanBefore) {
  for (const uint64_t seed : {3u, 4u, 5u}) {
    std::mt19937_64 random(seed);
    DistinctCounter counter;
    uint64_t before = 0, next = 1000;
    for (uint64_t names = 1; names <= 2'000'000; ++names) {
      counter.Add(random());
      ASSERT_GE(counter.Estimate(), before);
      before = counter.Estimate();
      if (names < next) continue;
      next += next / 4;
      const auto truth = static_cast<double>(names);
      EXPECT_NEAR(static_cast<double>(counter.Estimate()), truth, 0.05 * truth) << "seed " << seed;
    }
  }
}

TEST(DistinctCounter, EveryHashIsTaken) {
  DistinctCounter counter;
  for (const uint64_t hash : {uint64_t{0}, ~uint64_t{0}, uint64_t{1}, uint64_t{1} << 63}) counter.Add(hash);
  EXPECT_GE(counter.Estimate(), 3u);
}

}  // namespace
}  // namespace kvtier
