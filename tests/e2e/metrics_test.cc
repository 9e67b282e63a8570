// S64: a scripted workload, and every counter that it must move, exactly.
#include <map>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

class MetricsTest : public E2eTest {
 protected:
  /// Every sample of the text format with its value.
  std::map<std::string, double> Samples() const {
    std::map<std::string, double> samples;
    const auto text = daemon_->Metrics();
    KVTIER_CHECK(text.ok());
    std::istringstream lines(text.value());
    for (std::string line; std::getline(lines, line);) {
      const size_t space = line.rfind(' ');
      if (!line.starts_with("kvtier_") || space == std::string::npos) continue;
      samples[line.substr(0, space)] = std::strtod(line.c_str() + space + 1, nullptr);
    }
    return samples;
  }
};

TEST_F(MetricsTest, S64_AScriptedWorkloadMovesEveryCounterByExactlyItsNumber) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20,
               .warm_bytes = uint64_t{32} << 20,
               .cold_bytes = uint64_t{128} << 20,
               .more = {}});
  const auto before = Samples();
  {
    const Engine engine = Connect();  // a session, a model
    const api::Sequence sequence = engine.Keys(Tokens(1, 10 * kBlockTokens));
    const api::Sequence unknown = engine.Keys(Tokens(2, 5 * kBlockTokens));
    Kv kv = Kv::Random(1, 10 * kBlockTokens);
    engine.Put(sequence, kv);               // lookup of 10: 0 hit; put of 10: stored
    ASSERT_EQ(engine.Hits(sequence), 10u);  // lookup of 10: 10 hit
    ASSERT_EQ(engine.Hits(unknown), 0u);    // lookup of 5: 0 hit
    Kv out(10 * kBlockTokens);
    ASSERT_EQ(engine.Fetch(sequence, out).size(), 10u);  // acquire: 10 hits at 16 bits in hot
    ASSERT_EQ(engine.model.Acquire(unknown.Query()).code(), KVTIER_NOT_FOUND);  // acquire: 5 missed
    ASSERT_EQ(Ctl(*daemon_, "demote hot 4").exit_code, 0);      // another session; 4 moves hot to warm
    ASSERT_EQ(engine.Fetch(sequence, out).size(), 10u);         // 6 from hot, 4 from warm at INT4
    ASSERT_EQ(*engine.model.Remove(sequence.Query(8, 2)), 2u);  // the deepest two: in warm
    ASSERT_EQ(engine.Fetch(sequence, out).size(), 8u);          // partial: 8 acquired, 2 missed
    engine.Put(sequence, kv);                                   // lookup of 10: 8 hit; put of the other 2
    kvtier_acquire_options options = api::AcquireOptions();
    options.ttl_ms = 20;
    auto lease = engine.model.Acquire(sequence.Query(0, 1), options);  // acquire of 1, which expires
    ASSERT_TRUE(lease);
    ASSERT_TRUE(Eventually(10, [&] { return daemon_->Metric("kvtier_leases").value() == 0; }));
    ASSERT_EQ(lease->Release(), KVTIER_STALE);
  }
  ASSERT_TRUE(Eventually(5, [&] { return daemon_->Metric("kvtier_sessions").value() == 0; }));

  const std::map<std::string, double> expected = {
      {"kvtier_put_offered_blocks_total", 12},
      {"kvtier_put_blocks_total{outcome=\"stored\"}", 12},
      {"kvtier_put_blocks_total{outcome=\"present\"}", 0},
      {"kvtier_put_blocks_total{outcome=\"rejected\"}", 0},
      {"kvtier_put_blocks_total{outcome=\"dropped\"}", 0},
      {"kvtier_lookups_total", 4},
      {"kvtier_lookup_keys_total", 35},
      {"kvtier_lookup_hit_keys_total", 18},
      {"kvtier_lookup_distinct_keys_total", 10 + 5},
      {"kvtier_served_error_ratio_count{precision=\"bits16\",part=\"k\"}", 10 + 6 + 6 + 1},
      {"kvtier_served_error_ratio_bucket{precision=\"bits16\",part=\"v\",le=\"0\"}", 10 + 6 + 6 + 1},
      {"kvtier_served_error_ratio_bucket{precision=\"int4\",part=\"v\",le=\"0.02\"}", 0},
      {"kvtier_served_error_ratio_bucket{precision=\"int4\",part=\"v\",le=\"0.2\"}", 4 + 2},
      {"kvtier_acquires_total", 5},
      {"kvtier_acquired_blocks_total", 29},
      {"kvtier_missed_blocks_total", 7},
      {"kvtier_partial_acquires_total", 1},
      {"kvtier_tier_hits_total{tier=\"hot\",precision=\"bits16\"}", 10 + 6 + 6 + 1},
      {"kvtier_tier_hits_total{tier=\"warm\",precision=\"int4\"}", 4 + 2},
      {"kvtier_moved_blocks_total{from=\"put\",to=\"hot\"}", 12},
      {"kvtier_moved_blocks_total{from=\"hot\",to=\"warm\"}", 4},
      {"kvtier_requantized_blocks_total{from=\"hot\",to=\"warm\"}", 4},
      {"kvtier_tier_evictions_total{tier=\"warm\",reason=\"removed\"}", 2},
      {"kvtier_leases_granted_total", 4},
      {"kvtier_leases_ended_total{reason=\"released\"}", 3},
      {"kvtier_leases_ended_total{reason=\"expired\"}", 1},
      {"kvtier_leases_ended_total{reason=\"orphaned\"}", 0},
      {"kvtier_sessions_opened_total", 2},
      {"kvtier_unauthenticated_calls_total", 0},
      {"kvtier_namespace_mismatches_total", 0},
      {"kvtier_quarantined_blocks_total", 0},
      {"kvtier_commands_rejected_total", 0},
  };
  const auto after = Samples();
  for (const auto& [sample, value] : expected) {
    ASSERT_TRUE(after.contains(sample)) << sample << " is not exposed";
    EXPECT_EQ(after.at(sample) - before.at(sample), value) << sample;
  }
  const std::map<std::string, double> gauges = {
      {"kvtier_leases", 0},
      {"kvtier_sessions", 0},
      {"kvtier_staging_bytes", 0},
      {"kvtier_table_entries", 10},
      {"kvtier_tier_blocks{tier=\"hot\",precision=\"bits16\"}", 8},
      {"kvtier_tier_blocks{tier=\"warm\",precision=\"int4\"}", 2},
  };
  for (const auto& [sample, value] : gauges) EXPECT_EQ(after.at(sample), value) << sample;
}

}  // namespace
}  // namespace kvtier::e2e
