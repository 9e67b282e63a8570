#include "client/src/staging.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "tiers/base/memfd.h"

namespace kvtier::client {
namespace {

constexpr uint64_t kBytes = 1 << 20;
const TimePoint kNow = TimePoint::min();

MappedMemory Memory(uint64_t bytes) {
  const UniqueFd fd = std::move(MakeMemoryFile("staging-test", bytes)).value();
  return std::move(MappedMemory::MapShared(fd.get(), bytes, MapAccess::kReadWrite)).value();
}

TimePoint InSeconds(int seconds) {
  return SteadyClock().Now() + std::chrono::seconds(seconds);
}

TEST(StagingPool, HandsOutTheLowestFreeStretch) {
  StagingPool pool(Memory(kBytes), kBytes);
  EXPECT_EQ(pool.Allocate(1000, kNow), 0u);
  EXPECT_EQ(pool.Allocate(64, kNow), 1024u);
  EXPECT_EQ(pool.Allocate(64, kNow), 1088u);
  pool.Free(0);
  EXPECT_EQ(pool.Allocate(2000, kNow), 1152u) << "does not fit the gap";
  EXPECT_EQ(pool.Allocate(512, kNow), 0u);
  EXPECT_EQ(pool.Allocate(512, kNow), 512u);
}

TEST(StagingPool, StaysWithinItsWindowButLetsOneLargeStretchPass) {
  StagingPool pool(Memory(kBytes), 4096);
  const auto large = pool.Allocate(kBytes, kNow);
  ASSERT_EQ(large, 0u);
  EXPECT_EQ(pool.Allocate(64, kNow), std::nullopt);
  pool.Free(*large);
  EXPECT_EQ(pool.Allocate(4096, kNow), 0u);
  EXPECT_EQ(pool.Allocate(64, kNow), std::nullopt);
  EXPECT_EQ(pool.Allocate(kBytes + 1, InSeconds(60)), std::nullopt) << "never fits, so it does not wait";
}

TEST(StagingPool, WaitsForRoomAndWakesWhenSomeIsFreed) {
  StagingPool pool(Memory(kBytes), kBytes);
  ASSERT_EQ(pool.Allocate(kBytes, kNow), 0u);
  std::thread freeing([&] { pool.Free(0); });
  EXPECT_EQ(pool.Allocate(kBytes, InSeconds(60)), 0u);
  freeing.join();
}

TEST(StagingPool, WakesWaitersWhenTheSessionEnds) {
  StagingPool pool(Memory(kBytes), kBytes);
  ASSERT_EQ(pool.Allocate(kBytes, kNow), 0u);
  std::thread closing([&] { pool.Close(); });
  EXPECT_EQ(pool.Allocate(64, InSeconds(60)), std::nullopt);
  closing.join();
}

TEST(StagingPool, NeverHandsOutAByteTwice) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 rng(kSeed);
  StagingPool pool(Memory(kBytes), kBytes / 2);
  std::map<uint64_t, uint64_t> mine;
  for (int step = 0; step < 20'000; ++step) {
    if (rng() % 2 == 0 && !mine.empty()) {
      const auto victim = std::next(mine.begin(), rng() % mine.size());
      pool.Free(victim->first);
      mine.erase(victim);
      continue;
    }
    const uint64_t bytes = 1 + rng() % 60'000;
    const auto offset = pool.Allocate(bytes, kNow);
    if (!offset.has_value()) continue;
    ASSERT_EQ(*offset % 64, 0u);
    ASSERT_LE(*offset + bytes, kBytes);
    const auto [it, fresh] = mine.emplace(*offset, bytes);
    ASSERT_TRUE(fresh);
    if (it != mine.begin()) {
      ASSERT_LE(std::prev(it)->first + std::prev(it)->second, *offset);
    }
    if (std::next(it) != mine.end()) {
      ASSERT_LE(*offset + bytes, std::next(it)->first);
    }
  }
  for (const auto& [offset, bytes] : mine) pool.Free(offset);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

}  // namespace
}  // namespace kvtier::client
