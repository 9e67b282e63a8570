#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace kvtier {

/// Monotonic count. Threads: any; relaxed, exact.
class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(int64_t v) { value_.store(v, std::memory_order_relaxed); }
  void Add(int64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

/// Durations in powers of two from 1 us; bucket i holds values of at most 2^i us, the last one everything.
class LatencyHistogram {
 public:
  static constexpr int kBuckets = 24;
  void Observe(uint64_t nanoseconds) {
    int i = 0;
    while (i < kBuckets - 1 && nanoseconds > (uint64_t{1000} << i)) ++i;
    buckets_[i].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(nanoseconds, std::memory_order_relaxed);
  }
  uint64_t Bucket(int i) const { return buckets_[i].load(std::memory_order_relaxed); }
  uint64_t SumNanoseconds() const { return sum_ns_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
  std::atomic<uint64_t> sum_ns_{0};
};

/// Relative errors; bucket i holds values of at most kBounds[i], the last one everything.
class ErrorHistogram {
 public:
  static constexpr std::array<double, 9> kBounds = {0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5};
  static constexpr int kBuckets = kBounds.size() + 1;
  void Observe(float error) {
    size_t i = 0;
    while (i < kBounds.size() && !(error <= kBounds[i])) ++i;
    buckets_[i].fetch_add(1, std::memory_order_relaxed);
    // What is no relative error counts as far off, and has no part in the sum.
    if (error >= 0 && error <= 1) {
      sum_millionths_.fetch_add(static_cast<uint64_t>(error * 1e6f), std::memory_order_relaxed);
    }
  }
  uint64_t Bucket(int i) const { return buckets_[i].load(std::memory_order_relaxed); }
  double Sum() const { return static_cast<double>(sum_millionths_.load(std::memory_order_relaxed)) * 1e-6; }

 private:
  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
  std::atomic<uint64_t> sum_millionths_{0};
};

/// How long something lasted; bucket i holds values of at most kBoundsSeconds[i], the last one everything.
class AgeHistogram {
 public:
  static constexpr std::array<uint32_t, 8> kBoundsSeconds = {1, 10, 60, 600, 3600, 21'600, 86'400, 604'800};
  static constexpr int kBuckets = kBoundsSeconds.size() + 1;
  void Observe(uint32_t tenths) {
    size_t i = 0;
    while (i < kBoundsSeconds.size() && tenths > uint64_t{kBoundsSeconds[i]} * 10) ++i;
    buckets_[i].fetch_add(1, std::memory_order_relaxed);
    sum_tenths_.fetch_add(tenths, std::memory_order_relaxed);
  }
  uint64_t Bucket(int i) const { return buckets_[i].load(std::memory_order_relaxed); }
  uint64_t SumTenths() const { return sum_tenths_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
  std::atomic<uint64_t> sum_tenths_{0};
};

/// Why a copy left its tier: for room while a lower tier has the block, for room while none has it, by a
/// client or at its end, found corrupt, covered by a longer block.
enum class Departure : uint8_t { kDemoted, kEvicted, kRemoved, kCorrupt, kSuperseded };
inline constexpr int kDepartures = 5;

inline constexpr int kMaxTiers = 4;
inline constexpr int kPrecisions = 6;  ///< values of Precision

/// One tier's numbers. Counters count the event where it happens, once, only after it is true.
struct TierMetrics {
  Gauge capacity_bytes, used_bytes;
  Gauge fp16_bytes;                       ///< what its blocks would take at 16 bits a number
  std::array<Gauge, kPrecisions> blocks;  ///< by precision
  std::array<Counter, kPrecisions> hits;  ///< blocks served to an acquire from this tier, by precision
  Counter evicted_capacity, evicted_removed, evicted_corrupt,
      evicted_superseded;                                      ///< left the ladder from here, by reason
  Counter admitted, refused_seldom_used, refused_over_budget;  ///< demotions that a cold tier was asked for
  Counter asked_bytes;  ///< images that puts and demotions brought to a cold tier
  Counter written_for_puts, written_for_demotions, written_for_rewrites,
      written_for_metadata;  ///< bytes to a cold tier's device, by cause
  Counter write_errors, read_errors, checksum_failures;
  Counter scrubbed_blocks, scrubbed_bytes, scrub_corrupt,
      scrub_passes;          ///< of the background check of a cold tier; corrupt ones count as failures too
  Gauge scrub_pass_seconds;  ///< how long the last full pass took
  /// K tails and V tails: kept, left out for want of room, given up for something of more use, found bad.
  std::array<Counter, 2> tails_written, tails_no_room, tails_reclaimed, tails_damaged;
  std::array<Gauge, 3> part_bytes;   ///< live records of a cold tier: bases, K tails, V tails
  Gauge reserve_bytes;               ///< of its capacity: not for live records
  Gauge circuit_open;                ///< 1 while the tier sheds writes after device errors
  Gauge persistent;                  ///< 1: what it holds survives a power cut
  Gauge numa_node;                   ///< where its memory is; -1: none, or the system does not say
  Gauge read_circuit_open;           ///< 1 while it sheds reads
  LatencyHistogram acquire_latency;  ///< acquires whose slowest block came from this tier
  std::array<AgeHistogram, kDepartures> residence;  ///< of copies that left, by Departure
};

/// All numbers of a daemon: plain atomics, written where the event happens, read by the exporter. Leaf: no
/// library.
struct Metrics {
  std::array<TierMetrics, kMaxTiers> tier;
  struct Move {
    Counter blocks, bytes, requantized, failed;
  };
  std::array<std::array<Move, kMaxTiers + 1>, kMaxTiers + 1>
      moves;  ///< [from][to]; index kMaxTiers as `from` = put

  Counter puts_offered, puts_stored, puts_present, puts_rejected,
      puts_dropped;               ///< blocks: offered = stored + present + rejected + dropped (+ in flight)
  Counter puts_not_durable;       ///< blocks of durable puts, by the end of their tickets
  Counter cold_recovery_dropped;  ///< blocks and models found at start that are of no use
  Counter lookups, lookup_keys, lookup_hit_keys;
  Gauge lookup_distinct_keys;  ///< estimated, never less than before
  /// Of the blocks that acquires gave out, by precision: K, V.
  std::array<std::array<ErrorHistogram, 2>, kPrecisions> served_errors;
  Counter acquires, acquired_blocks, missed_blocks, partial_acquires;
  Counter namespace_mismatches, unsupported_images, quarantined_blocks, stranded_blocks,
      evicted_then_requested;
  Gauge leases_live, staged_bytes, sessions, models, table_entries, table_bytes;
  Counter leases_granted, leases_released, leases_expired, leases_orphaned;
  Counter prefetch_requested, prefetch_moved, prefetch_cancelled;
  Counter commands_rejected_full, commands_late, sessions_opened, sessions_refused, unauthenticated_calls;
  Gauge command_queue_depth, job_queue_depth;
  Gauge watchers;
  Counter watch_events_lost;
  Gauge uring_active, o_direct_active, fallocate_active;
  Gauge start_time_s;  ///< of the process, since 1970
  Counter worker_restarts;
  Gauge unhealthy_threads;
  Counter job_latency_ns, codec_encode_bytes, codec_encode_ns;
  Counter codec_raw_layer_blocks;  ///< encoded, but for layers that no codec holds faithfully
};

}  // namespace kvtier
