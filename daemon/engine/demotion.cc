#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Between a background demotion that failed and the next one.
constexpr Duration kDemotionPause = std::chrono::milliseconds(10);

}  // namespace

bool EngineImpl::IsBusyDemoting(const Tier& tier, uint32_t part) {
  if (tier.demotions_in_flight < kMaxDemotionsPerTier / part) return false;
  return tier.demotions_in_flight >= kMaxSmallDemotionsPerTier / part ||
         tier.leaving_bytes >= kMaxSmallDemotionBytes / part;
}

bool EngineImpl::MayLeave(EntryId id, TierId tier) const {
  const Entry& entry = table_.at(id);
  const Copy& copy = table_.copy(entry, tier);
  if (copy.state != CopyState::kPresent || copy.pinned()) return false;
  for (size_t lower = tier.value + 1u; lower < ladder_.tiers().size(); ++lower) {
    // Soon it may simply be freed here.
    if (table_.copy(entry, ladder_.tiers()[lower].id).state == CopyState::kWriting) return false;
  }
  return true;
}

/// Clients cannot map a GPU: what they read of it comes to host memory, and stays above as well. That copy
/// goes down by itself.
bool EngineImpl::CameForReader(const Entry& entry, TierId from) const {
  if (!ladder_.at(from).host()) return false;
  return std::ranges::any_of(ladder_.tiers(), [&](const Tier& tier) {
    return tier.options.kind == MediumKind::kGpu && !tier.lost &&
           entry.precision[tier.id.value] >= entry.precision[from.value];
  });
}

EngineImpl::Room EngineImpl::MoveAway(EntryId id, TierId from, uint32_t first_lower, bool on_demand,
                                      std::optional<Waiter> waiter) {
  const Entry& entry = table_.at(id);
  for (size_t lower = from.value + 1u; lower < ladder_.tiers().size(); ++lower) {
    if (!entry.Has(static_cast<uint32_t>(lower))) continue;
    EvictCopy(id, from, Reason::kCapacity);  // the lower copy stays: only the slot is freed
    return Room::kFreed;
  }
  if (CameForReader(entry, from)) {
    EvictCopy(id, from, Reason::kCapacity);
    return Room::kFreed;
  }
  Tier& tier = ladder_.at(from);
  bool refused = false;
  for (uint32_t lower = first_lower; lower < ladder_.tiers().size(); ++lower) {
    if (table_.copy(entry, ladder_.tiers()[lower].id).state != CopyState::kAbsent) continue;
    if (!CouldTake(ladder_.tiers()[lower], entry, from, Purpose::kDemote)) continue;
    if (IsBusyDemoting(tier)) return Room::kBusy;
    const DemotionFor whom = waiter ? DemotionFor::kOperator : DemotionFor::kRoom;
    if (!Admits(ladder_.tiers()[lower], entry, from, whom)) {
      refused = true;
      continue;
    }
    const uint64_t bytes = table_.copy(entry, from).place_bytes();
    ++tier.demotions_in_flight;
    tier.leaving_bytes += bytes;
    const SlotClass source_class{entry.tenant, bytes};
    if (tier.has_slots()) ++ladder_.QueueOf(tier, source_class).frees_coming;
    const TransferId transfer = StartTransfer({.entry = id,
                                               .purpose = Purpose::kDemote,
                                               .from = from,
                                               .to = TierId{static_cast<uint8_t>(lower)},
                                               .deadline = now_ + kBackgroundDeadline,
                                               .staged = std::nullopt,
                                               .waiter = waiter,
                                               .on_demand = on_demand});
    KVTIER_CHECK(transfer != TransferId{});
    transfers_.at(transfer).source_class = source_class;
    return Room::kComing;
  }
  // What is refused now is not asked for again at every step: the next victim may be taken.
  if (!on_demand && !refused) return Room::kNone;
  EvictCopy(id, from, Reason::kCapacity);
  return Room::kFreed;
}

void EngineImpl::StopCountingDemotion(const Transfer& transfer) {
  Tier& tier = ladder_.at(*transfer.from);
  --tier.demotions_in_flight;
  tier.leaving_bytes -= transfer.source_class.slot_bytes;
  if (tier.has_slots()) --ladder_.QueueOf(tier, transfer.source_class).frees_coming;
}

void EngineImpl::FinishDemotion(const Transfer& transfer, const Status& status) {
  Tier& tier = ladder_.at(*transfer.from);
  if (!transfer.overdue) StopCountingDemotion(transfer);
  bool wanted = !tier.draining.empty() || tier.draining_segment.has_value();
  if (tier.has_slots()) wanted |= !ladder_.QueueOf(tier, transfer.source_class).waiting.empty();
  const Entry& entry = table_.at(transfer.entry);
  if (!entry.in_table || !MayLeave(transfer.entry, *transfer.from)) return;
  if (status.ok()) return EvictCopy(transfer.entry, *transfer.from, Reason::kCapacity);
  if (!transfer.on_demand) {
    // What failed now would fail again at once.
    tier.demote_after = now_ + kDemotionPause;
    timers_.Add({tier.demote_after, TimerKind::kReclaim});
    return;
  }
  // The next tier did not take it: one further, and out where somebody waits for the slot.
  if (!wanted) return;
  MoveAway(transfer.entry, *transfer.from, transfer.to.value + 1u, /*on_demand=*/true, std::nullopt);
}

double EngineImpl::Occupancy(const Tier& tier) const {
  const ArenaAllocator& arenas = *tier.arenas;
  uint64_t free_bytes = arenas.free_bytes();
  // Bytes that cannot become an arena are of no use.
  if (tier.largest_slot_bytes == 0 || arenas.unplanned_bytes() >= ArenaBytes(1, tier.largest_slot_bytes)) {
    free_bytes += arenas.unplanned_bytes();
  }
  return 1.0 - static_cast<double>(free_bytes) / static_cast<double>(arenas.capacity_bytes());
}

std::optional<EntryId> EngineImpl::LeastUsed(const Tier& tier) const {
  struct Context {
    const EngineImpl* engine;
    TierId tier;
  } context{this, tier.id};
  const auto may_leave = [](void* raw, uint32_t entry) {
    const Context& c = *static_cast<const Context*>(raw);
    return c.engine->MayLeave(EntryId{entry}, c.tier);
  };
  if (!tier.has_slots()) {
    const std::optional<uint32_t> victim = tier.order->Victim(may_leave, &context);
    return victim ? std::optional(EntryId{*victim}) : std::nullopt;
  }
  std::optional<EntryId> least;
  for (const auto& [slot_class, queue] : tier.classes) {
    const std::optional<uint32_t> victim = queue.order->Victim(may_leave, &context);
    if (victim && (!least || table_.at(EntryId{*victim}).last_use < table_.at(*least).last_use)) {
      least = EntryId{*victim};
    }
  }
  return least;
}

void EngineImpl::DemoteBetweenWatermarks(Tier& tier) {
  if (tier.id.value + 1u >= ladder_.tiers().size()) return;  // nothing below: only a need evicts
  if (tier.lost) return;
  const double capacity = static_cast<double>(tier.options.capacity_bytes);
  if (!tier.demoting && Occupancy(tier) >= tier.options.high_watermark) tier.demoting = true;
  while (tier.demoting && now_ >= tier.demote_after) {
    if (Occupancy(tier) - static_cast<double>(tier.leaving_bytes) / capacity <= tier.options.low_watermark) {
      tier.demoting = false;
      return;
    }
    if (IsBusyDemoting(tier, 2)) return;  // the rest is for those who wait
    const std::optional<EntryId> victim = LeastUsed(tier);
    if (!victim) return;
    const Room room = MoveAway(*victim, tier.id, tier.id.value + 1u, /*on_demand=*/false, std::nullopt);
    if (room == Room::kNone || room == Room::kBusy) return;
  }
}

}  // namespace kvtier
