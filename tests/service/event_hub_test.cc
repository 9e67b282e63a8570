#include "daemon/service/event_hub.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace kvtier {
namespace {

constexpr WatchOptions kWithHistory{.history = true};

/// An event that can be told from others.
v1::Event Numbered(uint64_t number) {
  v1::Event event;
  event.mutable_session()->set_session(number);
  return event;
}

class EventHubTest : public testing::Test {
 protected:
  std::shared_ptr<EventWatcher> Watch(const WatcherIdentity& identity, WatchOptions options = {}) {
    auto watcher = hub_.Watch(
        identity, options, [this] { ++told_; }, now_);
    EXPECT_TRUE(watcher.ok()) << watcher.status().ToString();
    return watcher.ok() ? *watcher : nullptr;
  }
  static std::vector<uint64_t> NumbersOf(EventWatcher& watcher) {
    std::vector<uint64_t> numbers;
    while (const std::optional<v1::Event> event = watcher.Take())
      numbers.push_back(event->session().session());
    return numbers;
  }
  static WatcherIdentity Admin(uint64_t session = 1) {
    return {.session = SessionId{session}, .tenant = "uid:0", .admin = true};
  }
  static WatcherIdentity Tenant(const std::string& name, uint64_t session = 2) {
    return {.session = SessionId{session}, .tenant = name, .admin = false};
  }

  Metrics metrics_;
  EventHub hub_{metrics_,
                {.watchers = 6, .watchers_of_tenant = 2, .kept_for_admins = 2, .queue = 8, .history = 4}};
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  std::atomic<int> told_ = 0;
};

TEST_F(EventHubTest, EverybodyIsToldWhatIsForThemInOrder) {
  const auto admin = Watch(Admin()), a = Watch(Tenant("a")), b = Watch(Tenant("b"));
  hub_.TellEverybody(Numbered(1));
  hub_.TellTenant("a", Numbered(2));
  hub_.TellTenant("b", Numbered(3));
  hub_.TellAdmins(Numbered(4));
  hub_.TellEverybody(Numbered(5));
  EXPECT_EQ(told_, 5 + 3 + 3);
  EXPECT_EQ(NumbersOf(*admin), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(NumbersOf(*a), (std::vector<uint64_t>{1, 2, 5}));
  EXPECT_EQ(NumbersOf(*b), (std::vector<uint64_t>{1, 3, 5}));
}

TEST_F(EventHubTest, SequencesAreOfOneStreamAndTellNothingOfOthers) {
  const auto a = Watch(Tenant("a"));
  hub_.TellTenant("b", Numbered(1));
  hub_.TellAdmins(Numbered(2));
  hub_.TellTenant("a", Numbered(3));
  const std::optional<v1::Event> event = a->Take();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->sequence(), 1u);
  EXPECT_GT(event->time_ms(), 0u);
  EXPECT_FALSE(a->Take());
}

TEST_F(EventHubTest, WhoDoesNotTakeLosesEventsAndSeesHowMany) {
  const auto slow = Watch(Admin()), quick = Watch(Admin());
  std::vector<uint64_t> taken;
  for (uint64_t i = 1; i <= 20; ++i) {
    hub_.TellEverybody(Numbered(i));
    taken.push_back(quick->Take()->session().session());
  }
  EXPECT_EQ(taken.size(), 20u);
  EXPECT_EQ(NumbersOf(*slow), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  hub_.TellEverybody(Numbered(21));
  EXPECT_EQ(metrics_.watch_events_lost.Get(), 12u);
  const std::optional<v1::Event> next = slow->Take();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->session().session(), 21u);
  EXPECT_EQ(next->sequence(), 21u) << "after 8: 12 are missing";
}

TEST_F(EventHubTest, TheHistoryIsBoundedAndOfWhatTheWatcherMaySee) {
  for (uint64_t i = 1; i <= 6; ++i) hub_.TellTenant(i % 2 == 0 ? "a" : "b", Numbered(i));
  EXPECT_EQ(NumbersOf(*Watch(Admin(), kWithHistory)), (std::vector<uint64_t>{3, 4, 5, 6}));
  EXPECT_EQ(NumbersOf(*Watch(Tenant("a"), kWithHistory)), (std::vector<uint64_t>{4, 6}));
  EXPECT_EQ(NumbersOf(*Watch(Tenant("a"))), std::vector<uint64_t>{});
}

TEST_F(EventHubTest, ManySessionsDoNotDriveOutWhatHappensSeldom) {
  hub_.TellTenant("a", Numbered(1));
  hub_.TellEverybody(Numbered(2));
  for (uint64_t i = 3; i <= 10; ++i) hub_.TellTenant("a", Numbered(i));
  hub_.TellAdmins(Numbered(11));
  EXPECT_EQ(NumbersOf(*Watch(Admin(), kWithHistory)), (std::vector<uint64_t>{2, 7, 8, 9, 10, 11}));
}

TEST_F(EventHubTest, WatchersAreBoundedAndOneTenantDoesNotTakeThemAll) {
  const auto refused = [this](const WatcherIdentity& identity) {
    return hub_.Watch(
                   identity, {}, [] {}, now_)
               .status()
               .code() == Code::kResourceExhausted;
  };
  const auto first = Watch(Tenant("a")), second = Watch(Tenant("a"));
  EXPECT_TRUE(refused(Tenant("a")));
  const auto third = Watch(Tenant("b")), fourth = Watch(Tenant("b"));
  EXPECT_TRUE(refused(Tenant("c"))) << "the last two are for admins";
  const auto fifth = Watch(Admin()), sixth = Watch(Admin());
  EXPECT_TRUE(refused(Admin()));
  EXPECT_EQ(hub_.watchers(), 6u);
  EXPECT_EQ(metrics_.watchers.Get(), 6);
  hub_.Forget(third);
  const auto seventh = Watch(Tenant("c"));
  EXPECT_TRUE(refused(Admin()));
  hub_.Forget(fifth);
  EXPECT_TRUE(refused(Tenant("c"))) << "four of six are others' already";
  EXPECT_NE(Watch(Admin()), nullptr);
}

TEST_F(EventHubTest, AWatcherEndsWithItsSessionAfterWhatWaitsForIt) {
  const auto one = Watch(Admin(1)), other = Watch(Admin(2));
  hub_.TellEverybody(Numbered(1));
  told_ = 0;
  hub_.EndSession(SessionId{1});
  EXPECT_EQ(told_, 1);
  hub_.TellEverybody(Numbered(2));
  EXPECT_FALSE(one->Over()) << "an event waits";
  EXPECT_EQ(NumbersOf(*one), std::vector<uint64_t>{1});
  ASSERT_TRUE(one->Over());
  EXPECT_EQ(one->Over()->code(), Code::kUnauthenticated);
  EXPECT_EQ(NumbersOf(*other), (std::vector<uint64_t>{1, 2}));
  EXPECT_FALSE(other->Over());
  hub_.Close();
  ASSERT_TRUE(other->Over());
  EXPECT_EQ(other->Over()->code(), Code::kUnavailable);
  EXPECT_EQ(hub_.Watch(
                    Admin(), {}, [] {}, now_)
                .status()
                .code(),
            Code::kUnavailable);
}

TEST_F(EventHubTest, SnapshotsAreDueInTheTimeThatTheWatcherWants) {
  const auto often = Watch(Admin(), {.snapshot_every = std::chrono::seconds(1)});
  const auto seldom = Watch(Admin(), {.snapshot_every = std::chrono::seconds(3)});
  const auto due_after = [this](int seconds) {
    return hub_.DueForSnapshot(now_ + std::chrono::seconds(seconds));
  };
  EXPECT_TRUE(due_after(0).empty()) << "the first is the service's";
  EXPECT_EQ(due_after(1), std::vector{often});
  EXPECT_TRUE(due_after(1).empty());
  EXPECT_EQ(due_after(3), (std::vector{often, seldom}));
  hub_.EndSession(SessionId{1});
  EXPECT_TRUE(due_after(100).empty());
}

TEST_F(EventHubTest, NobodyIsToldAfterDetach) {
  const auto watcher = Watch(Admin());
  watcher->Detach();
  hub_.TellEverybody(Numbered(1));
  EXPECT_EQ(told_, 0);
}

TEST_F(EventHubTest, AnyThreadMayTellWatchAndLeave) {
  constexpr uint64_t kEvents = 2000;
  std::atomic<bool> stop = false;
  std::thread comes_and_goes([&] {
    while (!stop) {
      auto watcher = hub_.Watch(
          Admin(), kWithHistory, [this] { ++told_; }, now_);
      if (!watcher.ok()) continue;
      while ((*watcher)->Take()) {
      }
      (*watcher)->Detach();
      hub_.Forget(*watcher);
    }
  });
  const auto stays = Watch(Admin());
  std::vector<std::thread> tellers;
  for (uint64_t t = 0; t < 2; ++t) {
    tellers.emplace_back([&] {
      for (uint64_t i = 0; i < kEvents; ++i) hub_.TellEverybody(Numbered(i));
    });
  }
  uint64_t last = 0, taken = 0;
  const auto take = [&] {
    while (const std::optional<v1::Event> event = stays->Take()) {
      EXPECT_GT(event->sequence(), last);
      last = event->sequence();
      ++taken;
    }
  };
  for (int i = 0; i < 1000; ++i) take();
  for (std::thread& teller : tellers) teller.join();
  stop = true;
  comes_and_goes.join();
  take();
  hub_.TellEverybody(Numbered(0));
  take();
  EXPECT_EQ(last, 2 * kEvents + 1) << "each has a number, taken or lost";
  EXPECT_GE(taken, 9u);
}

}  // namespace
}  // namespace kvtier
