#include "monitoring/exporter_families.h"

#include <algorithm>
#include <array>
#include <functional>

#include "monitoring/exporter_histograms.h"

namespace kvtier {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;

constexpr double kSecondsPerNanosecond = 1e-9;
/// Values of Precision, as labels.
constexpr std::array<const char*, kPrecisions> kPrecisionNames = {"none", "int2",  "k4v2",
                                                                  "int4", "bits8", "bits16"};
/// The source of a move that is a put.
constexpr char kPutSource[] = "put";

ClientMetric Sample(MetricType type, double value, std::vector<Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return metric;
}

/// Families in the order in which they are added.
class Families {
 public:
  MetricFamily& Add(MetricType type, const char* name, const char* help) {
    families_.push_back(MetricFamily{.name = name, .help = help, .type = type, .metric = {}});
    return families_.back();
  }
  void One(MetricType type, const char* name, const char* help, double value) {
    Add(type, name, help).metric.push_back(Sample(type, value));
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

struct CounterRow {
  Counter Metrics::*field;
  const char* name;
  const char* help;
};
constexpr CounterRow kCounters[] = {
    {&Metrics::puts_offered, "kvtier_put_offered_blocks_total", "Blocks that clients offered to store."},
    {&Metrics::puts_not_durable, "kvtier_put_durable_failed_total",
     "Blocks of durable puts that could not be made durable."},
    {&Metrics::cold_recovery_dropped, "kvtier_cold_recovery_dropped_total",
     "Records and models in cold tiers that were dropped at start because they did not check out."},
    {&Metrics::lookups, "kvtier_lookups_total", "Lookup calls answered."},
    {&Metrics::lookup_keys, "kvtier_lookup_keys_total", "Keys that lookups asked for."},
    {&Metrics::lookup_hit_keys, "kvtier_lookup_hit_keys_total",
     "Keys of lookups that belong to a matched run."},
    {&Metrics::acquires, "kvtier_acquires_total", "Acquire calls answered."},
    {&Metrics::acquired_blocks, "kvtier_acquired_blocks_total", "Blocks given out under leases."},
    {&Metrics::missed_blocks, "kvtier_missed_blocks_total",
     "Blocks that acquires asked for and did not get."},
    {&Metrics::partial_acquires, "kvtier_partial_acquires_total",
     "Acquires that got some of their blocks, not all."},
    {&Metrics::namespace_mismatches, "kvtier_namespace_mismatches_total",
     "Images whose namespace is not that of the reader's model; a miss each."},
    {&Metrics::unsupported_images, "kvtier_unsupported_images_total",
     "Images of a version or codec that this daemon does not know; a miss each."},
    {&Metrics::quarantined_blocks, "kvtier_quarantined_blocks_total",
     "Blocks taken out because they were corrupt."},
    {&Metrics::stranded_blocks, "kvtier_stranded_blocks_total",
     "Blocks that can be reached by key only, because a block before them is gone."},
    {&Metrics::evicted_then_requested, "kvtier_evicted_then_requested_total",
     "Requests for a block that was evicted a short while before."},
    {&Metrics::leases_granted, "kvtier_leases_granted_total", "Leases given out."},
    {&Metrics::prefetch_requested, "kvtier_prefetch_requested_blocks_total",
     "Blocks that prefetches asked for."},
    {&Metrics::prefetch_moved, "kvtier_prefetch_moved_blocks_total", "Blocks that prefetches moved up."},
    {&Metrics::prefetch_cancelled, "kvtier_prefetch_cancelled_blocks_total",
     "Blocks of prefetches that were cancelled before they moved."},
    {&Metrics::commands_rejected_full, "kvtier_commands_rejected_total",
     "Commands refused because the engine's queue was full."},
    {&Metrics::commands_late, "kvtier_commands_late_total",
     "Commands dropped because their deadline had passed when the engine reached them."},
    {&Metrics::sessions_opened, "kvtier_sessions_opened_total", "Sessions welcomed."},
    {&Metrics::sessions_refused, "kvtier_sessions_refused_total",
     "Connections to the session socket that were refused: protocol version, malformed messages, limits."},
    {&Metrics::unauthenticated_calls, "kvtier_unauthenticated_calls_total",
     "gRPC calls without an open session."},
    {&Metrics::watch_events_lost, "kvtier_watch_events_lost_total",
     "Events that watchers were too slow for."},
    {&Metrics::worker_restarts, "kvtier_worker_restarts_total",
     "Times that a thread went on with fresh tools after an exception."},
    {&Metrics::codec_encode_bytes, "kvtier_codec_encoded_bytes_total", "Source bytes that codecs encoded."},
    {&Metrics::codec_raw_layer_blocks, "kvtier_codec_raw_layer_blocks_total",
     "Encoded blocks of which a layer stayed as it came, because no code holds it faithfully."},
};
/// Nanoseconds inside, seconds outside.
constexpr CounterRow kDurations[] = {
    {&Metrics::job_latency_ns, "kvtier_job_seconds_total",
     "Time that jobs took from the engine's order to their end."},
    {&Metrics::codec_encode_ns, "kvtier_codec_encode_seconds_total", "Time spent encoding."},
};

struct GaugeRow {
  Gauge Metrics::*field;
  const char* name;
  const char* help;
};
constexpr GaugeRow kGauges[] = {
    {&Metrics::leases_live, "kvtier_leases", "Leases held now."},
    {&Metrics::staged_bytes, "kvtier_staging_bytes", "Size of the staging memory of all sessions."},
    {&Metrics::sessions, "kvtier_sessions", "Open sessions."},
    {&Metrics::watchers, "kvtier_watchers", "Streams of events that are open."},
    {&Metrics::models, "kvtier_models", "Models known."},
    {&Metrics::table_entries, "kvtier_table_entries", "Blocks in the block table."},
    {&Metrics::table_bytes, "kvtier_table_bytes", "Memory of the block table."},
    {&Metrics::command_queue_depth, "kvtier_command_queue_depth", "Commands that wait for the engine."},
    {&Metrics::job_queue_depth, "kvtier_job_queue_depth", "Jobs that wait for a transfer worker."},
    {&Metrics::uring_active, "kvtier_io_uring_active",
     "Whether file I/O goes through io_uring (1) or plain calls (0)."},
    {&Metrics::o_direct_active, "kvtier_o_direct_active",
     "Whether cold segments are read and written with O_DIRECT."},
    {&Metrics::fallocate_active, "kvtier_fallocate_active",
     "Whether the space of cold segments is reserved when they are made."},
    {&Metrics::start_time_s, "kvtier_start_time_seconds", "When the daemon started, in seconds since 1970."},
    {&Metrics::unhealthy_threads, "kvtier_unhealthy_threads", "Threads that make no progress."},
};

struct TierGaugeRow {
  Gauge TierMetrics::*field;
  const char* name;
  const char* help;
};
constexpr TierGaugeRow kTierGauges[] = {
    {&TierMetrics::capacity_bytes, "kvtier_tier_capacity_bytes", "Bytes that the tier may use."},
    {&TierMetrics::used_bytes, "kvtier_tier_used_bytes", "Bytes that the tier uses."},
    {&TierMetrics::fp16_bytes, "kvtier_tier_fp16_bytes",
     "Bytes that the blocks in the tier would take at 16 bits a number."},
    {&TierMetrics::circuit_open, "kvtier_tier_circuit_open",
     "Whether the tier sheds writes after device errors (1) or takes them (0)."},
    {&TierMetrics::persistent, "kvtier_tier_persistent",
     "Whether what the tier holds survives a power cut (1) or not (0)."},
    {&TierMetrics::numa_node, "kvtier_tier_numa_node",
     "NUMA node of the tier's memory; -1 where there is none or the system does not say."},
    {&TierMetrics::scrub_pass_seconds, "kvtier_scrub_last_pass_seconds",
     "How long the last full pass of the background check took; 0 before the first."},
    {&TierMetrics::reserve_bytes, "kvtier_tier_reserve_bytes",
     "Bytes of a cold tier's capacity that blocks cannot count on: index, open and fresh segments."},
    {&TierMetrics::read_circuit_open, "kvtier_tier_read_circuit_open",
     "Whether reads of the tier are misses after device errors (1) or tried (0)."},
};

void AddScalars(const Metrics& metrics, Families& out) {
  for (const CounterRow& row : kCounters) {
    out.One(MetricType::Counter, row.name, row.help, static_cast<double>((metrics.*row.field).Get()));
  }
  for (const CounterRow& row : kDurations) {
    const auto nanoseconds = static_cast<double>((metrics.*row.field).Get());
    out.One(MetricType::Counter, row.name, row.help, nanoseconds * kSecondsPerNanosecond);
  }
  for (const GaugeRow& row : kGauges) {
    out.One(MetricType::Gauge, row.name, row.help, static_cast<double>((metrics.*row.field).Get()));
  }
}

struct TierCounterRow {
  Counter TierMetrics::*field;
  const char* name;
  const char* help;
};
constexpr TierCounterRow kTierCounters[] = {
    {&TierMetrics::checksum_failures, "kvtier_tier_checksum_failures_total",
     "Images whose bytes were not what their checksums say."},
    {&TierMetrics::asked_bytes, "kvtier_tier_asked_bytes_total",
     "Image bytes that puts and demotions brought to a cold tier."},
    {&TierMetrics::scrubbed_blocks, "kvtier_scrubbed_blocks_total", "Blocks that the background check read."},
    {&TierMetrics::scrubbed_bytes, "kvtier_scrubbed_bytes_total", "Bytes that the background check read."},
    {&TierMetrics::scrub_corrupt, "kvtier_scrub_corrupt_blocks_total",
     "Corrupt blocks that the background check found."},
    {&TierMetrics::scrub_passes, "kvtier_scrub_passes_total",
     "Times that the background check came through the whole tier."},
};

struct LabelledCounter {
  const char* value;
  const Counter& counter;
};
void AddLabelled(Families& out, const char* name, const char* help, const char* label,
                 std::initializer_list<LabelledCounter> counters) {
  MetricFamily& family = out.Add(MetricType::Counter, name, help);
  for (const LabelledCounter& one : counters) {
    family.metric.push_back(
        Sample(MetricType::Counter, static_cast<double>(one.counter.Get()), {{label, one.value}}));
  }
}

void AddOutcomes(const Metrics& metrics, Families& out) {
  AddLabelled(out, "kvtier_put_blocks_total",
              "Blocks that puts ended with: stored, present already, rejected at once, dropped later.",
              "outcome",
              {{"stored", metrics.puts_stored},
               {"present", metrics.puts_present},
               {"rejected", metrics.puts_rejected},
               {"dropped", metrics.puts_dropped}});
  AddLabelled(out, "kvtier_leases_ended_total",
              "Leases that ended: released by the client, expired, or orphaned by the end of its session.",
              "reason",
              {{"released", metrics.leases_released},
               {"expired", metrics.leases_expired},
               {"orphaned", metrics.leases_orphaned}});
}

void AddServedErrors(const Metrics& metrics, Families& out) {
  MetricFamily& family = out.Add(MetricType::Histogram, "kvtier_served_error_ratio",
                                 "Relative error of K and of V of the blocks that acquires gave out.");
  for (size_t p = 0; p < metrics.served_errors.size(); ++p) {
    for (size_t part = 0; part < metrics.served_errors[p].size(); ++part) {
      family.metric.push_back(ErrorSample(metrics.served_errors[p][part], {{"precision", kPrecisionNames[p]},
                                                                           {"part", part == 0 ? "k" : "v"}}));
    }
  }
}

/// One family with a sample for each tier and whatever else `add` labels it with.
template <typename AddSamples>
void AddByTier(const Metrics& metrics, const std::vector<std::string>& tiers, MetricFamily& family,
               AddSamples add) {
  for (size_t i = 0; i < tiers.size(); ++i) add(metrics.tier[i], Label{"tier", tiers[i]}, family.metric);
}

void AddTiers(const Metrics& metrics, const std::vector<std::string>& tiers, Families& out) {
  using Samples = std::vector<ClientMetric>;
  for (const TierGaugeRow& row : kTierGauges) {
    AddByTier(
        metrics, tiers, out.Add(MetricType::Gauge, row.name, row.help),
        [&](const TierMetrics& tier, const Label& label, Samples& samples) {
          samples.push_back(Sample(MetricType::Gauge, static_cast<double>((tier.*row.field).Get()), {label}));
        });
  }
  AddByTier(metrics, tiers,
            out.Add(MetricType::Gauge, "kvtier_tier_blocks", "Blocks in the tier, by precision."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              for (int p = 0; p < kPrecisions; ++p) {
                samples.push_back(Sample(MetricType::Gauge, static_cast<double>(tier.blocks[p].Get()),
                                         {label, {"precision", kPrecisionNames[p]}}));
              }
            });
  AddByTier(metrics, tiers,
            out.Add(MetricType::Counter, "kvtier_tier_hits_total",
                    "Blocks that acquires found in the tier, by the precision that they were given."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              for (int p = 0; p < kPrecisions; ++p) {
                samples.push_back(Sample(MetricType::Counter, static_cast<double>(tier.hits[p].Get()),
                                         {label, {"precision", kPrecisionNames[p]}}));
              }
            });
  AddByTier(metrics, tiers,
            out.Add(MetricType::Counter, "kvtier_tier_evictions_total",
                    "Blocks that left the ladder from the tier; corrupt: also those of a GPU that was lost."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              const LabelledCounter reasons[] = {{"capacity", tier.evicted_capacity},
                                                 {"removed", tier.evicted_removed},
                                                 {"corrupt", tier.evicted_corrupt},
                                                 {"superseded", tier.evicted_superseded}};
              for (const LabelledCounter& one : reasons) {
                samples.push_back(Sample(MetricType::Counter, static_cast<double>(one.counter.Get()),
                                         {label, {"reason", one.value}}));
              }
            });
  AddByTier(
      metrics, tiers,
      out.Add(MetricType::Counter, "kvtier_tier_admissions_total",
              "Demotions that the tier was asked to take: admitted, or refused because the block is seldom "
              "used or the write budget is spent."),
      [](const TierMetrics& tier, const Label& label, Samples& samples) {
        const LabelledCounter verdicts[] = {{"admitted", tier.admitted},
                                            {"seldom_used", tier.refused_seldom_used},
                                            {"over_budget", tier.refused_over_budget}};
        for (const LabelledCounter& one : verdicts) {
          samples.push_back(Sample(MetricType::Counter, static_cast<double>(one.counter.Get()),
                                   {label, {"verdict", one.value}}));
        }
      });
  AddByTier(metrics, tiers,
            out.Add(MetricType::Counter, "kvtier_tier_written_bytes_total",
                    "Bytes written to a cold tier's device: records of puts, of demotions, of blocks that a "
                    "reclaim kept, and metadata."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              const LabelledCounter causes[] = {{"put", tier.written_for_puts},
                                                {"demotion", tier.written_for_demotions},
                                                {"rewrite", tier.written_for_rewrites},
                                                {"metadata", tier.written_for_metadata}};
              for (const LabelledCounter& one : causes) {
                samples.push_back(Sample(MetricType::Counter, static_cast<double>(one.counter.Get()),
                                         {label, {"cause", one.value}}));
              }
            });
  AddByTier(
      metrics, tiers,
      out.Add(MetricType::Gauge, "kvtier_tier_write_amplification",
              "Bytes written to a cold tier's device by bytes of images brought there, since the start; 0 "
              "before the first."),
      [](const TierMetrics& tier, const Label& label, Samples& samples) {
        const uint64_t asked = tier.asked_bytes.Get();
        const uint64_t written = tier.written_for_puts.Get() + tier.written_for_demotions.Get() +
                                 tier.written_for_rewrites.Get() + tier.written_for_metadata.Get();
        const double ratio = asked == 0 ? 0 : static_cast<double>(written) / static_cast<double>(asked);
        samples.push_back(Sample(MetricType::Gauge, ratio, {label}));
      });
  AddByTier(
      metrics, tiers,
      out.Add(MetricType::Counter, "kvtier_tier_io_errors_total", "Reads and writes that the device failed."),
      [](const TierMetrics& tier, const Label& label, Samples& samples) {
        const LabelledCounter operations[] = {{"read", tier.read_errors}, {"write", tier.write_errors}};
        for (const LabelledCounter& one : operations) {
          samples.push_back(Sample(MetricType::Counter, static_cast<double>(one.counter.Get()),
                                   {label, {"operation", one.value}}));
        }
      });
  for (const TierCounterRow& row : kTierCounters) {
    AddByTier(metrics, tiers, out.Add(MetricType::Counter, row.name, row.help),
              [&row](const TierMetrics& tier, const Label& label, Samples& samples) {
                samples.push_back(
                    Sample(MetricType::Counter, static_cast<double>((tier.*row.field).Get()), {label}));
              });
  }
  AddByTier(metrics, tiers,
            out.Add(MetricType::Counter, "kvtier_tier_tails_total",
                    "K and V tails of cold blocks, by what became of them."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              for (size_t i = 0; i < tier.tails_written.size(); ++i) {
                const LabelledCounter events[] = {{"written", tier.tails_written[i]},
                                                  {"no_room", tier.tails_no_room[i]},
                                                  {"reclaimed", tier.tails_reclaimed[i]},
                                                  {"damaged", tier.tails_damaged[i]}};
                for (const LabelledCounter& one : events) {
                  samples.push_back(Sample(MetricType::Counter, static_cast<double>(one.counter.Get()),
                                           {label, {"tail", i == 0 ? "k" : "v"}, {"event", one.value}}));
                }
              }
            });
  AddByTier(metrics, tiers,
            out.Add(MetricType::Gauge, "kvtier_tier_part_bytes",
                    "Live bytes of a cold tier, by the part of blocks that they hold."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              constexpr const char* kParts[] = {"base", "k_tail", "v_tail"};
              for (size_t i = 0; i < tier.part_bytes.size(); ++i) {
                samples.push_back(Sample(MetricType::Gauge, static_cast<double>(tier.part_bytes[i].Get()),
                                         {label, {"part", kParts[i]}}));
              }
            });
  AddByTier(metrics, tiers,
            out.Add(MetricType::Histogram, "kvtier_acquire_latency_seconds",
                    "Time that acquires took, by the lowest tier that they had to read from."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              samples.push_back(HistogramSample(tier.acquire_latency, {label}));
            });
  AddByTier(metrics, tiers,
            out.Add(MetricType::Histogram, "kvtier_tier_residence_seconds",
                    "How long blocks that left the tier had been in it, by why they left."),
            [](const TierMetrics& tier, const Label& label, Samples& samples) {
              constexpr std::array<const char*, kDepartures> kReasons = {"demoted", "evicted", "removed",
                                                                         "corrupt", "superseded"};
              for (size_t i = 0; i < kReasons.size(); ++i) {
                samples.push_back(AgeSample(tier.residence[i], {label, {"reason", kReasons[i]}}));
              }
            });
}

struct MoveRow {
  Counter Metrics::Move::*field;
  const char* name;
  const char* help;
};
constexpr MoveRow kMoves[] = {
    {&Metrics::Move::blocks, "kvtier_moved_blocks_total",
     "Blocks moved from one tier (or from a put) to another."},
    {&Metrics::Move::bytes, "kvtier_moved_bytes_total", "Image bytes written by those moves."},
    {&Metrics::Move::requantized, "kvtier_requantized_blocks_total",
     "Blocks that changed their codec in a move."},
    {&Metrics::Move::failed, "kvtier_failed_moves_total", "Moves that failed; nothing was published."},
};

void AddMoves(const Metrics& metrics, const std::vector<std::string>& tiers, Families& out) {
  for (const MoveRow& row : kMoves) {
    MetricFamily& family = out.Add(MetricType::Counter, row.name, row.help);
    for (size_t from = 0; from <= tiers.size(); ++from) {
      const bool put = from == tiers.size();
      for (size_t to = 0; to < tiers.size(); ++to) {
        if (from == to) continue;
        const Metrics::Move& move = metrics.moves[put ? kMaxTiers : from][to];
        family.metric.push_back(Sample(MetricType::Counter, static_cast<double>((move.*row.field).Get()),
                                       {{"from", put ? kPutSource : tiers[from]}, {"to", tiers[to]}}));
      }
    }
  }
}

}  // namespace

std::vector<MetricFamily> CollectFamilies(const Metrics& metrics, const ExporterLabels& labels) {
  Families out;
  out.Add(MetricType::Gauge, "kvtier_build_info", "Always 1; the version is a label.")
      .metric.push_back(Sample(MetricType::Gauge, 1, {{"version", labels.version}}));
  AddTiers(metrics, labels.tiers, out);
  AddMoves(metrics, labels.tiers, out);
  AddOutcomes(metrics, out);
  AddServedErrors(metrics, out);
  out.One(MetricType::Counter, "kvtier_lookup_distinct_keys_total",
          "Keys of lookups that none had asked for before, estimated to 5 %.",
          static_cast<double>(metrics.lookup_distinct_keys.Get()));
  AddScalars(metrics, out);
  return out.Take();
}

}  // namespace kvtier
