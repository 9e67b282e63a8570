#include <gtest/gtest.h>

#include "client/ctl/event_text.h"

namespace kvtier::ctl {
namespace {

/// At 2026-12-01 04:13:27.045 UTC, the third of its stream.
v1::Event At() {
  v1::Event event;
  event.set_sequence(3);
  event.set_time_ms(1'796'098'407'045);
  return event;
}

constexpr char kTime[] = "2026-12-01T04:13:27.045Z  ";
constexpr char kBegin[] = R"({"sequence":3,"time_ms":1796098407045,"event":)";

void Expect(const v1::Event& event, const std::string& line, const std::string& json) {
  EXPECT_EQ(EventLine(event), kTime + line);
  EXPECT_EQ(EventJson(event), kBegin + json);
}

TEST(CtlEventsTest, SessionsTellWhoAndWhy) {
  v1::Event event = At();
  v1::SessionChange& change = *event.mutable_session();
  change.set_kind(v1::SessionChange::OPENED);
  change.set_session(7);
  change.set_tenant("team-a");
  change.set_uid(1000);
  change.set_pid(42);
  Expect(event, "session 7 of team-a opened by uid 1000, process 42",
         R"("session","kind":"opened","session":7,"tenant":"team-a","uid":1000,"pid":42})");
  change.set_kind(v1::SessionChange::ENDED);
  change.set_reason("its socket\x1b was closed");
  Expect(
      event, "session 7 of team-a ended: its socket\\x1b was closed",
      R"("session","kind":"ended","session":7,"tenant":"team-a","uid":1000,"pid":42,"reason":"its socket\u001b was closed"})");
}

TEST(CtlEventsTest, StatesAreWords) {
  v1::Event event = At();
  event.mutable_tier()->set_tier("cold");
  event.mutable_tier()->set_kind(v1::TierChange::SHEDS_WRITES);
  Expect(event, "cold: takes no blocks: writes fail", R"("tier","kind":"sheds_writes","tier":"cold"})");
  event.mutable_daemon()->set_kind(v1::DaemonChange::DRAINING);
  Expect(event, "the daemon drains: it takes no more puts", R"("daemon","kind":"draining"})");
}

TEST(CtlEventsTest, OfCountsPeopleSeeThoseAboveZero) {
  v1::Event event = At();
  event.mutable_evictions()->set_tier("hot");
  event.mutable_evictions()->set_for_room(5);
  event.mutable_evictions()->set_corrupt(1);
  Expect(event, "evicted from hot: 5 for room; 1 corrupt",
         R"("evictions","tier":"hot","for_room":5,"removed":0,"corrupt":1,"superseded":0})");
  event.mutable_damage()->set_tier("cold");
  event.mutable_damage()->set_checksum_failures(2);
  event.mutable_damage()->set_found_by_scrub(1);
  Expect(
      event, "damage in cold: 2 checksum failures; 1 of them found by the scrub",
      R"("damage","tier":"cold","checksum_failures":2,"found_by_scrub":1,"write_errors":0,"read_errors":0})");
  event.mutable_tier_refusals()->set_tier("cold");
  event.mutable_tier_refusals()->set_seldom_used(3);
  Expect(event, "not admitted to cold: 3 seldom used",
         R"("tier_refusals","tier":"cold","seldom_used":3,"over_budget":0})");
  event.mutable_refusals()->set_sessions(4);
  Expect(
      event, "refused: 4 sessions",
      R"("refusals","rejected_put_blocks":0,"dropped_put_blocks":0,"sessions":4,"full_queue":0,"unauthenticated":0})");
}

TEST(CtlEventsTest, ASnapshotIsTheStateInALine) {
  v1::Event event = At();
  v1::StatsReply& stats = *event.mutable_snapshot()->mutable_stats();
  stats.set_table_entries(3);
  stats.set_models(1);
  stats.set_sessions(2);
  stats.set_leases_live(4);
  stats.set_draining(true);
  v1::TierStats& tier = *stats.add_tiers();
  tier.set_name("cold");
  tier.set_used_bytes(1 << 20);
  tier.set_capacity_bytes(2 << 20);
  Expect(
      event, "3 blocks of 1 models, 2 sessions, 4 leases; cold 1.0 MiB of 2.0 MiB, sheds writes; draining",
      R"("snapshot","blocks":3,"models":1,"sessions":2,"leases":4,"draining":true,"tiers":[{"name":"cold","used_bytes":1048576,"capacity_bytes":2097152,"accepts_writes":false}]})");
}

TEST(CtlEventsTest, WhatANewerDaemonTellsIsSaidToBeUnknown) {
  v1::Event event = At();
  Expect(event, "an event that this kvtierctl does not know", R"("unknown"})");
  event.mutable_tier()->set_tier("cold");
  event.mutable_tier()->set_kind(static_cast<v1::TierChange::Kind>(99));
  Expect(event, "cold: changed in a way that this kvtierctl does not know",
         R"("tier","kind":"unknown","tier":"cold"})");
}

}  // namespace
}  // namespace kvtier::ctl
