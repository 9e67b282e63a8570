#include "client/src/progress.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "client/src/completions.h"

namespace kvtier::client {
namespace {

bool IsReadable(int fd) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) == 1;
}

TEST(Completions, TellEachTicketOnceInOrder) {
  Completions completions(8);
  completions.Add(1);  // before anybody asked
  const int fd = completions.Descriptor().value();
  EXPECT_FALSE(IsReadable(fd));
  for (const uint64_t ticket : {5, 6, 7}) completions.Add(ticket);
  EXPECT_TRUE(IsReadable(fd));
  uint64_t out[2] = {};
  ASSERT_EQ(completions.Take(out), 2u);
  EXPECT_EQ(out[0], 5u);
  EXPECT_EQ(out[1], 6u);
  EXPECT_TRUE(IsReadable(fd)) << "one is left";
  ASSERT_EQ(completions.Take(out), 1u);
  EXPECT_EQ(out[0], 7u);
  EXPECT_FALSE(IsReadable(fd));
  EXPECT_EQ(completions.Take(out), 0u);
  completions.Add(8);
  EXPECT_TRUE(IsReadable(fd)) << "it works again after it was empty";
  EXPECT_EQ(completions.Descriptor().value(), fd);
}

TEST(Completions, LeaveOutWhatWasWaitedFor) {
  Completions completions(8);
  const int fd = completions.Descriptor().value();
  completions.Add(1);
  completions.Add(2);
  completions.Forget(1);
  uint64_t out[4] = {};
  ASSERT_EQ(completions.Take(out), 1u);
  EXPECT_EQ(out[0], 2u);
  completions.Add(3);
  completions.Forget(3);
  EXPECT_FALSE(IsReadable(fd));
}

TEST(Completions, AreBounded) {
  Completions completions(2);
  ASSERT_TRUE(completions.Descriptor().ok());
  for (const uint64_t ticket : {1, 2, 3}) completions.Add(ticket);
  uint64_t out[4] = {};
  ASSERT_EQ(completions.Take(out), 2u);
  EXPECT_EQ(out[0], 2u);
}

TEST(Progress, TellsItsEndOnceAndBeforeAWaiterSeesIt) {
  for (int round = 0; round < 200; ++round) {
    Progress progress(1);
    progress.BatchStarted();
    progress.BatchStarted();
    int told = 0;
    progress.OnEnd([&] { ++told; });
    std::thread other([&] {
      progress.BatchEnded();
      progress.BatchEnded();
    });
    ASSERT_TRUE(progress.WaitUntil(SteadyClock().Now() + std::chrono::seconds(30)));
    EXPECT_EQ(told, 1);
    other.join();
  }
}

TEST(Progress, ThatHasEndedTellsAtOnce) {
  Progress progress(0);
  bool told = false;
  progress.OnEnd([&] { told = true; });
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace kvtier::client
