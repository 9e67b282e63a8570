#include "tiers/base/bounded_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace kvtier {
namespace {

TimePoint Soon() {
  return SteadyClock().Now() + std::chrono::seconds(30);
}
TimePoint Past() {
  return SteadyClock().Now();
}

TEST(BoundedQueue, RefusesWhenFullAndLeavesTheValueAlone) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**queue.TryPop(), 1);
  EXPECT_TRUE(queue.TryPush(std::move(second)));
}

TEST(BoundedQueue, UrgentOnesOvertakeInTheirOwnOrder) {
  BoundedQueue<int> queue(4);
  ASSERT_TRUE(queue.TryPush(1));
  ASSERT_TRUE(queue.TryPushUrgent(2));
  ASSERT_TRUE(queue.TryPush(3));
  ASSERT_TRUE(queue.TryPushUrgent(4));
  EXPECT_FALSE(queue.TryPushUrgent(5)) << "the bound is of all";
  EXPECT_EQ(queue.size(), 4u);
  std::vector<int> order;
  while (const std::optional<int> value = queue.TryPop()) order.push_back(*value);
  EXPECT_EQ(order, (std::vector{2, 4, 1, 3}));
}

TEST(BoundedQueue, UrgentOnesDoNotStarveTheOthers) {
  BoundedQueue<int> queue(8);
  ASSERT_TRUE(queue.TryPush(-1));
  int pops = 0;
  for (int last = 0; last != -1; ++pops) {
    ASSERT_TRUE(queue.TryPushUrgent(1));
    last = *queue.TryPop();
    ASSERT_LE(pops, static_cast<int>(kMaxUrgentInARow));
    if (queue.size() >= 7) break;
  }
  EXPECT_EQ(pops, static_cast<int>(kMaxUrgentInARow) + 1);
}

TEST(BoundedQueue, ReturnsEmptyAtTheDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_FALSE(queue.PopUntil(Past()).has_value());
  EXPECT_FALSE(queue.TryPop().has_value());
}

TEST(BoundedQueue, HandsOutTheRestAfterClose) {
  BoundedQueue<int> queue(4);
  ASSERT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_EQ(queue.PopUntil(Soon()), 1);
  EXPECT_FALSE(queue.PopUntil(Soon()).has_value());
}

TEST(BoundedQueue, WakeEndsAWaitWithoutAnElement) {
  BoundedQueue<int> queue(1);
  std::thread waker([&] { queue.Wake(); });
  EXPECT_FALSE(queue.PopUntil(Soon()).has_value());
  waker.join();
}

bool HasRung(const Doorbell& bell) {
  pollfd look{.fd = bell.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&look, 1, 0) == 1;
}

TEST(BoundedQueue, RingsOnceForTheNextElementThatFindsNobodyWaiting) {
  BoundedQueue<int> queue(4);
  const auto bell = std::make_shared<const Doorbell>();
  ASSERT_TRUE(bell->valid());
  ASSERT_TRUE(queue.RingFor(bell));
  ASSERT_TRUE(queue.RingFor(bell)) << "the same again";
  EXPECT_FALSE(HasRung(*bell));
  ASSERT_TRUE(queue.TryPushUrgent(1));
  EXPECT_TRUE(HasRung(*bell));
  bell->Silence();
  EXPECT_FALSE(HasRung(*bell));
  ASSERT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(HasRung(*bell)) << "asked for once";
  EXPECT_FALSE(queue.RingFor(bell)) << "there is an element already";
  EXPECT_EQ(queue.TryPop(), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  ASSERT_TRUE(queue.RingFor(bell));
  queue.StopRingingFor(bell);
  ASSERT_TRUE(queue.TryPush(3));
  EXPECT_FALSE(HasRung(*bell));
}

/// Who waits has been woken by the first element, but may not run yet when the second comes.
TEST(BoundedQueue, RingsForAnElementMoreThanThoseWhoWaitTake) {
  constexpr int kRounds = 20, kYields = 10;
  BoundedQueue<int> queue(4), begun(1), ended(1);
  const auto bell = std::make_shared<const Doorbell>();
  std::thread waits([&] {
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_TRUE(begun.PopUntil(Soon()).has_value());
      EXPECT_TRUE(queue.PopUntil(Soon()).has_value());
      EXPECT_TRUE(ended.TryPush(0));
    }
  });
  int silent = 0;
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_TRUE(queue.RingFor(bell));
    EXPECT_TRUE(begun.TryPush(0));
    for (int turn = 0; turn < kYields; ++turn) std::this_thread::yield();  // so that it mostly waits by then
    EXPECT_TRUE(queue.TryPush(1));
    EXPECT_TRUE(queue.TryPush(2));
    silent += HasRung(*bell) ? 0 : 1;
    EXPECT_TRUE(ended.PopUntil(Soon()).has_value());
    EXPECT_TRUE(queue.TryPop().has_value());
    bell->Silence();
    queue.StopRingingFor(bell);
  }
  waits.join();
  EXPECT_EQ(silent, 0) << "times of " << kRounds;
}

TEST(BoundedQueue, LosesAndDoublesNothingBetweenManyThreads) {
  constexpr int kThreads = 4, kEach = 5000;
  BoundedQueue<int> queue(16);
  std::vector<std::atomic<int>> seen(kThreads * kEach);
  std::vector<std::thread> producers, consumers;
  for (int p = 0; p < kThreads; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!queue.TryPush(p * kEach + i)) std::this_thread::yield();
      }
    });
    consumers.emplace_back([&] {
      while (true) {
        const std::optional<int> value = queue.PopUntil(Soon());
        if (!value.has_value()) return;
        seen[static_cast<size_t>(*value)].fetch_add(1);
      }
    });
  }
  for (auto& producer : producers) producer.join();
  queue.Close();
  for (auto& consumer : consumers) consumer.join();
  for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace kvtier
