#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Moves to or from a tier beside which it is still checked.
constexpr uint32_t kMovesBesideScrub = 4;
/// Until the next look at a tier that has other things to do.
constexpr Duration kScrubBusyPause = std::chrono::milliseconds(100);
/// Between two passes, so that a tier with few blocks is not read all the time.
constexpr Duration kScrubPassPause = std::chrono::seconds(60);

Duration TimeFor(uint64_t bytes, uint64_t bytes_per_second) {
  return std::chrono::nanoseconds(
      static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_second)));
}

}  // namespace

/// The background check of cold tiers: one record in flight, in the order of the table, at the configured
/// pace.
void EngineImpl::AdvanceScrubs() {
  for (Tier& tier : ladder_.tiers()) {
    if (tier.options.scrub_bytes_per_second > 0 && !tier.scrub.in_flight) AdvanceScrub(tier);
  }
}

void EngineImpl::AdvanceScrub(Tier& tier) {
  Tier::Scrub& scrub = tier.scrub;
  if (now_ >= scrub.next_at) {
    const bool busy = host_jobs_.HasBacklog() || tier.moves.HasBacklog() || !tier.waiting.empty() ||
                      tier.recycles_in_flight > 0 || tier.moves_in_flight > kMovesBesideScrub;
    const std::optional<EntryId> next = busy ? std::nullopt : NextToScrub(tier);
    if (next) {
      scrub.in_flight = true;
      ++scrub.pass_blocks;
      return VerifyCopy(tier.id, *next, OpId{});
    }
    if (busy) scrub.next_at = now_ + kScrubBusyPause;
  }
  timers_.Add({scrub.next_at, TimerKind::kScrub, tier.id.value});
}

/// Nothing: the end of the pass, or of the rows for one step. Then next_at says when to go on.
std::optional<EntryId> EngineImpl::NextToScrub(Tier& tier) {
  Tier::Scrub& scrub = tier.scrub;
  if (scrub.next_row == 0) scrub.pass_began = now_;
  for (uint32_t rows = 0; rows < kSweepRowsPerStep; ++rows) {
    if (scrub.next_row >= table_.row_limit()) {
      if (scrub.pass_blocks > 0) {
        tier.metrics->scrub_passes.Add();
        tier.metrics->scrub_pass_seconds.Set(
            std::chrono::duration_cast<std::chrono::seconds>(now_ - scrub.pass_began).count());
      }
      scrub.next_row = 0;
      scrub.pass_blocks = 0;
      scrub.next_at = now_ + kScrubPassPause;
      return std::nullopt;
    }
    const EntryId id{scrub.next_row++};
    if (table_.live(id) && table_.at(id).in_table && table_.at(id).Has(tier.id.value)) return id;
  }
  scrub.next_at = now_ + std::chrono::milliseconds(1);
  return std::nullopt;
}

void EngineImpl::OnScrubbed(const PendingJob& job) {
  Tier& tier = ladder_.at(job.tier);
  KVTIER_CHECK(tier.scrub.in_flight);
  tier.scrub.in_flight = false;
  tier.scrub.next_at = now_ + TimeFor(job.bytes, tier.options.scrub_bytes_per_second);
  tier.metrics->scrubbed_blocks.Add();
  tier.metrics->scrubbed_bytes.Add(job.bytes);
}

}  // namespace kvtier
