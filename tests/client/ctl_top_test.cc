#include "client/ctl/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/ctl/http_get.h"

namespace kvtier::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

Exposition Scrape(const std::string& text) {
  return Exposition::Parse(text).value();
}

TEST(Exposition, SumsTheSamplesThatHaveTheLabels) {
  const Exposition scrape = Scrape(
      "# HELP hits Found.\n# TYPE hits counter\n"
      "hits{tier=\"hot\",precision=\"int4\"} 3\nhits{tier=\"hot\",precision=\"bits16\"} 4.5\n"
      "hits{tier=\"cold\",precision=\"int4\"} 10\n\nplain 1e+06\nendless +Inf\n");
  EXPECT_EQ(scrape.Sum("hits"), 17.5);
  EXPECT_EQ(scrape.Sum("hits", {{"tier", "hot"}}), 7.5);
  EXPECT_EQ(scrape.Sum("hits", {{"precision", "int4"}, {"tier", "cold"}}), 10);
  EXPECT_EQ(scrape.Sum("hits", {{"reason", "none"}}), 0);
  EXPECT_EQ(scrape.Sum("plain"), 1e6);
  EXPECT_GT(scrape.Sum("endless"), 1e300);
  EXPECT_EQ(scrape.Sum("nothing"), 0);
  EXPECT_EQ(scrape.Values("hits", "tier"), (std::vector<std::string>{"hot", "cold"}));
}

TEST(Exposition, ReadsEscapedLabels) {
  const Exposition scrape = Scrape("a{b=\"x\\\"y}\\\\\",c=\"\"} 2");
  EXPECT_EQ(scrape.Sum("a", {{"b", "x\"y}\\"}, {"c", ""}}), 2);
}

TEST(Exposition, RefusesWhatIsNoSample) {
  for (const char* text : {"<html>", "name", "name{a=\"b\"", "name{a=\"b", "name{a} 1", "name{a=\"b\"}1",
                           "name value", " 1", "name{a=\"b\\"}) {
    EXPECT_EQ(Exposition::Parse(text).status().code(), Code::kDataLoss) << text;
  }
}

constexpr char kBefore[] =
    "kvtier_build_info{version=\"9.8.7\"} 1\n"
    "kvtier_tier_capacity_bytes{tier=\"hot\"} 1048576\nkvtier_tier_capacity_bytes{tier=\"cold\"} 4194304\n"
    "kvtier_lookup_keys_total 1000\nkvtier_lookup_hit_keys_total 900\n"
    "kvtier_acquire_latency_seconds_bucket{tier=\"hot\",le=\"0.001\"} 50\n"
    "kvtier_acquire_latency_seconds_bucket{tier=\"hot\",le=\"0.002\"} 50\n"
    "kvtier_acquire_latency_seconds_bucket{tier=\"hot\",le=\"+Inf\"} 50\n";
constexpr char kAfter[] =
    "kvtier_build_info{version=\"9.8.7\"} 1\n"
    "kvtier_tier_capacity_bytes{tier=\"hot\"} 1048576\nkvtier_tier_capacity_bytes{tier=\"cold\"} 4194304\n"
    "kvtier_tier_used_bytes{tier=\"hot\"} 524288\nkvtier_tier_fp16_bytes{tier=\"hot\"} 1572864\n"
    "kvtier_tier_blocks{tier=\"hot\",precision=\"int4\"} 1\n"
    "kvtier_tier_blocks{tier=\"hot\",precision=\"bits16\"} 3\n"
    "kvtier_lookup_keys_total 1200\nkvtier_lookup_hit_keys_total 950\nkvtier_lookup_distinct_keys_total 20\n"
    "kvtier_tier_hits_total{tier=\"hot\",precision=\"int4\"} 30\n"
    "kvtier_moved_blocks_total{from=\"hot\",to=\"cold\"} 40\n"
    "kvtier_acquire_latency_seconds_bucket{tier=\"hot\",le=\"0.001\"} 60\n"
    "kvtier_acquire_latency_seconds_bucket{tier=\"hot\",le=\"0.002\"} 150\n"
    "kvtier_acquire_latency_seconds_bucket{tier=\"hot\",le=\"+Inf\"} 150\n";

TEST(Top, ShowsWhatHappenedBetweenTwoLooks) {
  const std::string frame = TopFrame("127.0.0.1:1", Scrape(kBefore), Scrape(kAfter), 2);
  EXPECT_THAT(frame, HasSubstr("kvtierd 9.8.7 at 127.0.0.1:1"));
  EXPECT_THAT(frame, HasSubstr("hit rate  25.0 % of keys (endless memory: 90.0 %)\n"));
  EXPECT_THAT(frame, HasSubstr("1.0 MiB saved against 16 bits\n"));
  EXPECT_THAT(frame, HasSubstr("served    int4 100.0 %\n"));
  EXPECT_THAT(frame,
              testing::ContainsRegex("hot +\\[##########\\.{10}\\] +512\\.0 KiB +1\\.0 MiB +15\\.0 +2 ms "
                                     "+0\\.0 +20\\.0 +0\\.0 +- +int4 25\\.0 %  bits16 75\\.0 %"));
  EXPECT_THAT(frame, testing::ContainsRegex("cold +\\[\\.{20}\\] +0 B +4\\.0 MiB +0\\.0 +- +20\\.0 +0\\.0"));
  EXPECT_THAT(frame, HasSubstr("\nnothing is wrong\n"));
}

TEST(Top, NamesWhatIsWrong) {
  const auto frame = [](const std::string& more) {
    return TopFrame("a", Scrape(kBefore), Scrape(kAfter + more), 2);
  };
  const std::pair<const char*, const char*> faults[] = {
      {"kvtier_unhealthy_threads 2\n", "! 2 threads make no progress\n"},
      {"kvtier_tier_circuit_open{tier=\"cold\"} 1\n", "! tier cold takes no blocks"},
      {"kvtier_tier_read_circuit_open{tier=\"cold\"} 1\n", "! what tier cold holds is a miss"},
      {"kvtier_tier_checksum_failures_total{tier=\"hot\"} 3\n", "! tier hot gave back 3 corrupt blocks"},
      {"kvtier_cold_recovery_dropped_total 7\n", "! the start dropped 7 damaged records"},
      {"kvtier_put_durable_failed_total 1\n", "! 0.5 durable blocks fail a second\n"},
      {"kvtier_lookups_total 100\nkvtier_commands_late_total 2\n", "! 1.0 commands are refused a second"}};
  for (const auto& [sample, line] : faults) {
    EXPECT_THAT(frame(sample), HasSubstr(line));
    EXPECT_THAT(frame(sample), Not(HasSubstr("nothing is wrong")));
  }
  EXPECT_THAT(frame("kvtier_lookups_total 100\nkvtier_commands_late_total 1\n"),
              HasSubstr("nothing is wrong"))
      << "1 %";
}

TEST(Top, LetsNoControlCharacterThroughToTheTerminal) {
  const Exposition scrape = Scrape(
      "kvtier_build_info{version=\"1\x1b[2J\"} 1\nkvtier_tier_capacity_bytes{tier=\"a\x1b[2J\"} 1\n"
      "kvtier_tier_circuit_open{tier=\"a\x1b[2J\"} 1\n");
  const std::string frame = TopFrame("a", scrape, scrape, 2);
  EXPECT_THAT(frame, HasSubstr("kvtierd 1\\x1b[2J at"));
  EXPECT_THAT(frame, HasSubstr("! tier a\\x1b[2J takes no blocks"));
  EXPECT_THAT(frame, Not(HasSubstr("\x1b")));
}

TEST(HttpGet, SaysWhatIsWrong) {
  using std::chrono::seconds;
  for (const char* address :
       {"", "here", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:1x", "nowhere.example:80"}) {
    EXPECT_EQ(HttpGet(address, "/", seconds(1)).status().code(), Code::kInvalidArgument) << address;
  }
  EXPECT_EQ(HttpGet("127.0.0.1:1", "/", seconds(1)).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace kvtier::ctl
