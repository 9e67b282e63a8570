#include "daemon/service/event_source.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

class EventSourceTest : public testing::Test {
 protected:
  EventSourceTest() {
    const auto watch = [this](bool admin) {
      return hub_
          .Watch(
              {.session = SessionId{1}, .tenant = "uid:1", .admin = admin}, {}, [] {}, TimePoint())
          .value();
    };
    admin_ = watch(true);
    user_ = watch(false);
  }
  EventSource Make() { return EventSource(metrics_, {"hot", "cold"}, hub_); }
  static std::vector<v1::Event> Taken(EventWatcher& watcher) {
    std::vector<v1::Event> events;
    while (std::optional<v1::Event> event = watcher.Take()) events.push_back(*std::move(event));
    return events;
  }

  Metrics metrics_;
  EventHub hub_{metrics_};
  std::shared_ptr<EventWatcher> admin_, user_;
};

TEST_F(EventSourceTest, NothingIsToldOfWhatWasBeforeOrDidNotHappen) {
  metrics_.tier[0].evicted_capacity.Add(5);
  metrics_.tier[1].circuit_open.Set(1);
  metrics_.puts_rejected.Add(5);
  EventSource source = Make();
  source.Look(false);
  source.Look(false);
  EXPECT_TRUE(Taken(*admin_).empty());
}

TEST_F(EventSourceTest, ChangesOfStateAreToldOnceToEverybody) {
  EventSource source = Make();
  metrics_.tier[1].circuit_open.Set(1);
  source.Look(false);
  source.Look(false);
  metrics_.tier[1].circuit_open.Set(0);
  metrics_.tier[1].read_circuit_open.Set(1);
  source.Look(true);
  source.Look(true);
  metrics_.tier[1].read_circuit_open.Set(0);
  metrics_.unhealthy_threads.Set(2);
  source.Look(true);
  metrics_.unhealthy_threads.Set(0);
  source.Look(true);
  source.TellMemoryLost(0);
  source.TellStopping();
  const auto text = [](const v1::Event& event) {
    return event.has_tier() ? event.tier().tier() + std::to_string(event.tier().kind())
                            : std::to_string(event.daemon().kind());
  };
  std::vector<std::string> told;
  for (const v1::Event& event : Taken(*user_)) told.push_back(text(event));
  EXPECT_EQ(told, (std::vector<std::string>{"cold1", "1", "cold2", "cold3", "3", "cold4", "4", "hot5", "2"}));
  EXPECT_EQ(Taken(*admin_).size(), told.size());
}

TEST_F(EventSourceTest, CountsAreThoseSinceTheLastLookAndForAdminsAlone) {
  EventSource source = Make();
  TierMetrics& hot = metrics_.tier[0];
  hot.evicted_capacity.Add(3);
  hot.evicted_removed.Add(1);
  source.Look(false);
  hot.evicted_capacity.Add(2);
  hot.evicted_corrupt.Add(4);
  hot.evicted_superseded.Add(5);
  source.Look(false);
  std::vector<v1::Event> events = Taken(*admin_);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].evictions().tier(), "hot");
  EXPECT_EQ(events[0].evictions().for_room(), 3u);
  EXPECT_EQ(events[0].evictions().removed(), 1u);
  EXPECT_EQ(events[1].evictions().for_room(), 2u);
  EXPECT_EQ(events[1].evictions().removed(), 0u);
  EXPECT_EQ(events[1].evictions().corrupt(), 4u);
  EXPECT_EQ(events[1].evictions().superseded(), 5u);

  TierMetrics& cold = metrics_.tier[1];
  cold.checksum_failures.Add(2);
  cold.scrub_corrupt.Add(1);
  cold.write_errors.Add(6);
  cold.read_errors.Add(7);
  cold.refused_seldom_used.Add(8);
  cold.refused_over_budget.Add(9);
  metrics_.puts_rejected.Add(10);
  metrics_.puts_dropped.Add(11);
  metrics_.sessions_refused.Add(12);
  metrics_.commands_rejected_full.Add(13);
  metrics_.unauthenticated_calls.Add(14);
  source.Look(false);
  events = Taken(*admin_);
  ASSERT_EQ(events.size(), 3u);
  const v1::Damage& damage = events[0].damage();
  EXPECT_EQ(damage.tier(), "cold");
  EXPECT_EQ(damage.checksum_failures(), 2u);
  EXPECT_EQ(damage.found_by_scrub(), 1u);
  EXPECT_EQ(damage.write_errors(), 6u);
  EXPECT_EQ(damage.read_errors(), 7u);
  EXPECT_EQ(events[1].tier_refusals().seldom_used(), 8u);
  EXPECT_EQ(events[1].tier_refusals().over_budget(), 9u);
  const v1::Refusals& refusals = events[2].refusals();
  EXPECT_EQ(refusals.rejected_put_blocks(), 10u);
  EXPECT_EQ(refusals.dropped_put_blocks(), 11u);
  EXPECT_EQ(refusals.sessions(), 12u);
  EXPECT_EQ(refusals.full_queue(), 13u);
  EXPECT_EQ(refusals.unauthenticated(), 14u);
  EXPECT_TRUE(Taken(*user_).empty()) << "counts tell of other tenants";
}

}  // namespace
}  // namespace kvtier
