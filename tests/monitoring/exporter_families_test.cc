#include "monitoring/exporter_families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <limits>
#include <regex>
#include <set>
#include <sstream>

namespace kvtier {
namespace {

using testing::HasSubstr;

const ExporterLabels kLabels{.tiers = {"hot", "warm", "cold"}, .version = "9.8.7"};

std::string TextOf(const Metrics& metrics, const ExporterLabels& labels = kLabels) {
  return prometheus::TextSerializer().Serialize(CollectFamilies(metrics, labels));
}

TEST(ExporterFamilies, CountersAreExact) {
  Metrics metrics;
  metrics.puts_offered.Add(10);
  metrics.puts_stored.Add(6);
  metrics.puts_present.Add(3);
  metrics.puts_rejected.Add(1);
  metrics.puts_not_durable.Add(7);
  metrics.cold_recovery_dropped.Add(8);
  metrics.tier[1].hits[3].Add(42);
  metrics.moves[0][1].bytes.Add(123'456'789'012'345);
  metrics.moves[kMaxTiers][0].blocks.Add(6);
  metrics.codec_encode_ns.Add(1'500'000'000);
  metrics.leases_live.Set(-1);
  metrics.tier[2].blocks[2].Set(33);
  metrics.tier[2].tails_reclaimed[1].Add(5);
  metrics.tier[2].part_bytes[1].Set(4096);
  const std::string text = TextOf(metrics);
  EXPECT_THAT(text, HasSubstr("\nkvtier_put_offered_blocks_total 10\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_put_durable_failed_total 7\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_cold_recovery_dropped_total 8\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_put_blocks_total{outcome=\"stored\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_put_blocks_total{outcome=\"present\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_put_blocks_total{outcome=\"rejected\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_put_blocks_total{outcome=\"dropped\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_tier_hits_total{tier=\"warm\",precision=\"int4\"} 42\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_moved_bytes_total{from=\"hot\",to=\"warm\"} 123456789012345\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_moved_blocks_total{from=\"put\",to=\"hot\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_codec_encode_seconds_total 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_leases -1\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_tier_blocks{tier=\"cold\",precision=\"k4v2\"} 33\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_tier_tails_total{tier=\"cold\",tail=\"v\",event=\"reclaimed\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_tier_part_bytes{tier=\"cold\",part=\"k_tail\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("kvtier_build_info{version=\"9.8.7\"} 1\n"));
}

TEST(ExporterFamilies, WriteAmplificationIsWhatWasWrittenByWhatWasAskedFor) {
  Metrics metrics;
  EXPECT_THAT(TextOf(metrics), HasSubstr("\nkvtier_tier_write_amplification{tier=\"cold\"} 0\n"));
  TierMetrics& cold = metrics.tier[2];
  cold.asked_bytes.Add(100);
  cold.written_for_puts.Add(50);
  cold.written_for_demotions.Add(60);
  cold.written_for_rewrites.Add(30);
  cold.written_for_metadata.Add(10);
  cold.refused_over_budget.Add(3);
  const std::string text = TextOf(metrics);
  EXPECT_THAT(text, HasSubstr("\nkvtier_tier_write_amplification{tier=\"cold\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_tier_written_bytes_total{tier=\"cold\",cause=\"rewrite\"} 30\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_tier_admissions_total{tier=\"cold\",verdict=\"over_budget\"} 3\n"));
}

TEST(ExporterFamilies, ErrorsAreCumulativeByPrecisionAndPart) {
  Metrics metrics;
  auto& int4 = metrics.served_errors[3];
  int4[0].Observe(0);
  int4[0].Observe(0.0625f);                                  // at most 0.1
  int4[0].Observe(std::numeric_limits<float>::quiet_NaN());  // as far off as can be
  int4[1].Observe(-0.5f);
  const std::string text = TextOf(metrics);
  const std::string k = "kvtier_served_error_ratio_bucket{precision=\"int4\",part=\"k\",le=";
  EXPECT_THAT(text, HasSubstr(k + "\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(k + "\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(k + "\"0.1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(k + "\"0.5\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(k + "\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_served_error_ratio_sum{precision=\"int4\",part=\"k\"} 0.0625\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_served_error_ratio_count{precision=\"int4\",part=\"v\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nkvtier_served_error_ratio_count{precision=\"int2\",part=\"v\"} 0\n"));
}

TEST(ExporterFamilies, HistogramsAreCumulativeInSeconds) {
  Metrics metrics;
  metrics.tier[2].acquire_latency.Observe(1'000);              // at most 1 us
  metrics.tier[2].acquire_latency.Observe(1'001);              // at most 2 us
  metrics.tier[2].acquire_latency.Observe(3'600'000'000'000);  // beyond all bounds
  const std::string text = TextOf(metrics);
  const std::string name = "kvtier_acquire_latency_seconds";
  EXPECT_THAT(text, HasSubstr(name + "_bucket{tier=\"cold\",le=\"1e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{tier=\"cold\",le=\"2e-06\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{tier=\"cold\",le=\"4.194304\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{tier=\"cold\",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(name + "_count{tier=\"cold\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(name + "_count{tier=\"hot\"} 0\n"));
}

TEST(ExporterFamilies, ResidenceIsCumulativeInSecondsByTierAndReason) {
  Metrics metrics;
  AgeHistogram& demoted = metrics.tier[0].residence[static_cast<size_t>(Departure::kDemoted)];
  demoted.Observe(10);                                    // at most 1 s
  demoted.Observe(11);                                    // at most 10 s
  demoted.Observe(std::numeric_limits<uint32_t>::max());  // beyond all bounds
  const std::string text = TextOf(metrics);
  const std::string name = "kvtier_tier_residence_seconds", labels = "{tier=\"hot\",reason=\"demoted\"";
  EXPECT_THAT(text, HasSubstr(name + "_bucket" + labels + ",le=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket" + labels + ",le=\"10\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket" + labels + ",le=\"604800\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket" + labels + ",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(name + "_sum" + labels + "} 429496731.6\n"));
  EXPECT_THAT(text, HasSubstr(name + "_count{tier=\"hot\",reason=\"evicted\"} 0\n"));
}

TEST(ExporterFamilies, EveryNumberOfMetricsIsExported) {
  // Metrics is nothing but 64-bit atomics: each of them, set alone, must change the text.
  static_assert(sizeof(Metrics) % sizeof(std::atomic<uint64_t>) == 0);
  constexpr size_t kNumbers = sizeof(Metrics) / sizeof(std::atomic<uint64_t>);
  const ExporterLabels labels{.tiers = {"a", "b", "c", "d"}, .version = "v"};
  auto metrics = std::make_unique<Metrics>();
  auto* numbers = reinterpret_cast<std::atomic<uint64_t>*>(metrics.get());
  // A move never ends where it began, and never in a put.
  std::set<const void*> unused;
  const auto skip = [&](const Metrics::Move& move) {
    for (const Counter* counter : {&move.blocks, &move.bytes, &move.requantized, &move.failed})
      unused.insert(counter);
  };
  for (int from = 0; from <= kMaxTiers; ++from) {
    skip(metrics->moves[from][kMaxTiers]);
    if (from < kMaxTiers) skip(metrics->moves[from][from]);
  }
  const std::string nothing = TextOf(*metrics, labels);
  for (size_t i = 0; i < kNumbers; ++i) {
    if (unused.contains(&numbers[i])) continue;
    numbers[i].store(1'000'000'000);
    EXPECT_NE(TextOf(*metrics, labels), nothing) << "number " << i << " of metrics.h is in no family";
    numbers[i].store(0);
  }
}

TEST(ExporterFamilies, NamesTypesAndHelpFollowPrometheus) {
  const Metrics metrics;
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family : CollectFamilies(metrics, kLabels)) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " twice";
    EXPECT_TRUE(std::regex_match(family.name, std::regex("kvtier_[a-z0-9_]+"))) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
    EXPECT_EQ(family.help.back(), '.') << family.name;
    EXPECT_FALSE(family.metric.empty()) << family.name;
    const bool total = family.name.size() > 6 && family.name.ends_with("_total");
    EXPECT_EQ(family.type == prometheus::MetricType::Counter, total) << family.name;
  }
}

TEST(ExporterFamilies, OnlyTheTiersThereAreAppear) {
  const Metrics metrics;
  const std::string text = TextOf(metrics, {.tiers = {"warm"}, .version = "v"});
  EXPECT_THAT(text, HasSubstr("kvtier_tier_used_bytes{tier=\"warm\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("kvtier_moved_blocks_total{from=\"put\",to=\"warm\"} 0\n"));
  EXPECT_EQ(text.find("tier=\"\""), std::string::npos);
}

}  // namespace
}  // namespace kvtier
