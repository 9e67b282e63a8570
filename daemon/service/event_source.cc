#include "daemon/service/event_source.h"

#include <utility>

namespace kvtier {

EventSource::Tier::Tier(const TierMetrics& tier, std::string tier_name)
    : metrics(&tier),
      name(std::move(tier_name)),
      sheds_writes(tier.circuit_open.Get() != 0),
      sheds_reads(tier.read_circuit_open.Get() != 0),
      for_room(tier.evicted_capacity),
      removed(tier.evicted_removed),
      corrupt(tier.evicted_corrupt),
      superseded(tier.evicted_superseded),
      checksum_failures(tier.checksum_failures),
      found_by_scrub(tier.scrub_corrupt),
      write_errors(tier.write_errors),
      read_errors(tier.read_errors),
      seldom_used(tier.refused_seldom_used),
      over_budget(tier.refused_over_budget) {}

EventSource::EventSource(const Metrics& metrics, std::vector<std::string> tiers, EventHub& hub)
    : metrics_(metrics),
      hub_(hub),
      puts_rejected_(metrics.puts_rejected),
      puts_dropped_(metrics.puts_dropped),
      sessions_refused_(metrics.sessions_refused),
      full_queue_(metrics.commands_rejected_full),
      unauthenticated_(metrics.unauthenticated_calls) {
  for (size_t i = 0; i < tiers.size(); ++i) tiers_.emplace_back(metrics.tier[i], std::move(tiers[i]));
}

void EventSource::Look(bool draining) {
  if (std::exchange(draining_, draining) != draining && draining) Tell(v1::DaemonChange::DRAINING);
  const bool stuck = metrics_.unhealthy_threads.Get() > 0;
  if (std::exchange(threads_stuck_, stuck) != stuck)
    Tell(stuck ? v1::DaemonChange::THREADS_STUCK : v1::DaemonChange::THREADS_WELL);
  for (Tier& tier : tiers_) {
    LookAtState(tier);
    LookAtCounts(tier);
  }
  LookAtRefusals();
}

void EventSource::TellMemoryLost(size_t tier) {
  Tell(tiers_.at(tier), v1::TierChange::MEMORY_LOST);
}

void EventSource::TellStopping() {
  Tell(v1::DaemonChange::STOPPING);
}

void EventSource::LookAtState(Tier& tier) {
  const bool writes = tier.metrics->circuit_open.Get() != 0,
             reads = tier.metrics->read_circuit_open.Get() != 0;
  if (std::exchange(tier.sheds_writes, writes) != writes)
    Tell(tier, writes ? v1::TierChange::SHEDS_WRITES : v1::TierChange::TAKES_WRITES);
  if (std::exchange(tier.sheds_reads, reads) != reads)
    Tell(tier, reads ? v1::TierChange::SHEDS_READS : v1::TierChange::SERVES_READS);
}

void EventSource::LookAtCounts(Tier& tier) {
  const uint64_t for_room = tier.for_room.Take(), removed = tier.removed.Take(),
                 corrupt = tier.corrupt.Take(), superseded = tier.superseded.Take();
  if (for_room + removed + corrupt + superseded > 0) {
    v1::Event event;
    v1::Evictions& evictions = *event.mutable_evictions();
    evictions.set_tier(tier.name);
    evictions.set_for_room(for_room);
    evictions.set_removed(removed);
    evictions.set_corrupt(corrupt);
    evictions.set_superseded(superseded);
    hub_.TellAdmins(std::move(event));
  }
  const uint64_t failures = tier.checksum_failures.Take(), scrub = tier.found_by_scrub.Take(),
                 write_errors = tier.write_errors.Take(), read_errors = tier.read_errors.Take();
  if (failures + scrub + write_errors + read_errors > 0) {
    v1::Event event;
    v1::Damage& damage = *event.mutable_damage();
    damage.set_tier(tier.name);
    damage.set_checksum_failures(failures);
    damage.set_found_by_scrub(scrub);
    damage.set_write_errors(write_errors);
    damage.set_read_errors(read_errors);
    hub_.TellAdmins(std::move(event));
  }
  const uint64_t seldom_used = tier.seldom_used.Take(), over_budget = tier.over_budget.Take();
  if (seldom_used + over_budget == 0) return;
  v1::Event event;
  v1::TierRefusals& refusals = *event.mutable_tier_refusals();
  refusals.set_tier(tier.name);
  refusals.set_seldom_used(seldom_used);
  refusals.set_over_budget(over_budget);
  hub_.TellAdmins(std::move(event));
}

void EventSource::LookAtRefusals() {
  const uint64_t rejected = puts_rejected_.Take(), dropped = puts_dropped_.Take(),
                 sessions = sessions_refused_.Take(), full = full_queue_.Take(),
                 unauthenticated = unauthenticated_.Take();
  if (rejected + dropped + sessions + full + unauthenticated == 0) return;
  v1::Event event;
  v1::Refusals& refusals = *event.mutable_refusals();
  refusals.set_rejected_put_blocks(rejected);
  refusals.set_dropped_put_blocks(dropped);
  refusals.set_sessions(sessions);
  refusals.set_full_queue(full);
  refusals.set_unauthenticated(unauthenticated);
  hub_.TellAdmins(std::move(event));
}

void EventSource::Tell(const Tier& tier, v1::TierChange::Kind kind) {
  v1::Event event;
  event.mutable_tier()->set_kind(kind);
  event.mutable_tier()->set_tier(tier.name);
  hub_.TellEverybody(std::move(event));
}

void EventSource::Tell(v1::DaemonChange::Kind kind) {
  v1::Event event;
  event.mutable_daemon()->set_kind(kind);
  hub_.TellEverybody(std::move(event));
}

}  // namespace kvtier
