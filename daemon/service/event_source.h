#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/service/event_hub.h"
#include "monitoring/metrics.h"

namespace kvtier {

/// Makes events of what the metrics have counted since the last look, so that the engine, which counts, has
/// nothing to do with them. Single-owner.
class EventSource {
 public:
  /// Both outlive it. `tiers` are the names of those that run. What was counted before is no event.
  EventSource(const Metrics& metrics, std::vector<std::string> tiers, EventHub& hub);

  /// To be called about once a second: a state that lasts shorter may be missed, a count never.
  void Look(bool draining);
  void TellMemoryLost(size_t tier);
  void TellStopping();

 private:
  /// What a counter has counted since it was asked last.
  class Since {
   public:
    explicit Since(const Counter& counter) : counter_(&counter), last_(counter.Get()) {}
    uint64_t Take() {
      const uint64_t now = counter_->Get(), before = last_;
      last_ = now;
      return now - before;
    }

   private:
    const Counter* counter_;
    uint64_t last_;
  };
  struct Tier {
    Tier(const TierMetrics& metrics, std::string name);

    const TierMetrics* metrics;
    std::string name;
    bool sheds_writes, sheds_reads;
    Since for_room, removed, corrupt, superseded;
    Since checksum_failures, found_by_scrub, write_errors, read_errors;
    Since seldom_used, over_budget;
  };

  void LookAtState(Tier& tier);
  void LookAtCounts(Tier& tier);
  void LookAtRefusals();
  void Tell(const Tier& tier, v1::TierChange::Kind kind);
  void Tell(v1::DaemonChange::Kind kind);

  const Metrics& metrics_;
  EventHub& hub_;
  std::vector<Tier> tiers_;
  Since puts_rejected_, puts_dropped_, sessions_refused_, full_queue_, unauthenticated_;
  bool threads_stuck_ = false;
  bool draining_ = false;
};

}  // namespace kvtier
