#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// An arena is ordered ahead when fewer than this share of a usual one is free, where a usual one has a few
/// slots.
constexpr uint32_t kAheadShare = 4;
/// No memory from the system: the next arena is tried after this long.
constexpr Duration kCreateBackoff = std::chrono::seconds(1);

}  // namespace

void EngineImpl::Pump() {
  pump_again_ = false;
  for (int round = 0; round < kPumpRounds; ++round) {
    const uint64_t before = changes_;
    for (Tier& tier : ladder_.tiers()) {
      if (tier.has_slots()) {
        PumpArenas(tier);
      } else {
        PumpCold(tier);
      }
    }
    if (changes_ == before) return;
  }
  pump_again_ = true;
}

void EngineImpl::PumpArenas(Tier& tier) {
  AdvanceDrains(tier);
  for (auto& [slot_class, queue] : tier.classes) {
    if (!queue.waiting.empty()) PumpClass(tier, slot_class, queue);
  }
  DemoteBetweenWatermarks(tier);
}

void EngineImpl::PumpClass(Tier& tier, const SlotClass& slot_class, SlotQueue& queue) {
  while (!queue.waiting.empty()) {
    Transfer& first = transfers_.at(queue.waiting.front());
    if (ladder_.TakePlace(first.entry, first.to, first.image_bytes)) {
      queue.waiting.pop_front();
      OrderMove(first);
      continue;
    }
    if (queue.frees_coming + queue.slots_coming >= queue.waiting.size()) return;
    if (CreateArena(tier, slot_class, queue)) continue;
    if (ReclaimEmpty(tier, slot_class)) return;
    const Room room = MakeRoom(tier, slot_class, queue);
    if (room == Room::kFreed || room == Room::kComing) continue;
    if (room == Room::kBusy || Reclaim(tier, slot_class)) return;
    // What is being written or read now can leave as soon as that ends.
    if (queue.frees_coming + queue.slots_coming + tier.moves_in_flight > 0) return;
    return FailWaiting(queue.waiting);
  }
}

void EngineImpl::FailWaiting(std::deque<TransferId>& waiting) {
  std::deque<TransferId> failed;
  failed.swap(waiting);
  for (const TransferId id : failed) {
    if (!transfers_.contains(id)) continue;
    FinishTransfer(id, Status(Code::kResourceExhausted, "the tier is full of blocks that cannot leave it"));
  }
}

bool EngineImpl::CreateArena(Tier& tier, const SlotClass& slot_class, SlotQueue& queue) {
  if (now_ < tier.create_arenas_after) return false;
  const std::optional<ArenaSpec> spec = tier.arenas->Plan(ArenaId{next_arena_}, slot_class);
  if (!spec) return false;
  ++next_arena_;
  ++changes_;
  ++queue.arenas_coming;
  queue.slots_coming += spec->slots;
  EnqueueUrgent({.kind = PendingJob::Kind::kCreateArena, .tier = tier.id, .arena = spec->id},
                CreateArenaJob{*spec});
  return true;
}

void EngineImpl::OrderArenaAhead(Tier& tier, const SlotClass& slot_class) {
  const uint32_t usual = tier.arenas->UsualSlots(slot_class.slot_bytes);
  SlotQueue& queue = ladder_.QueueOf(tier, slot_class);
  if (usual < kAheadShare || queue.arenas_coming > 0) return;
  if (tier.arenas->FreeSlots(slot_class) >= usual / kAheadShare) return;
  CreateArena(tier, slot_class, queue);
}

void EngineImpl::OnArenaCreated(const PendingJob& job, const Status& status) {
  ++changes_;
  Tier& tier = ladder_.at(job.tier);
  const ArenaSpec spec = tier.arenas->arena(job.arena).spec;
  SlotQueue& queue = ladder_.QueueOf(tier, {spec.tenant, spec.slot_bytes});
  --queue.arenas_coming;
  queue.slots_coming -= spec.slots;
  if (!status.ok()) {
    tier.metrics->write_errors.Add();
    tier.arenas->CreateFailed(job.arena);
    tier.create_arenas_after = now_ + kCreateBackoff;
    return;
  }
  tier.arenas->Created(job.arena);
  if (tier.host()) deps_.events.OnArenaPublished(spec);
}

EngineImpl::Room EngineImpl::MakeRoom(Tier& tier, const SlotClass& slot_class, SlotQueue& queue) {
  struct Context {
    const EngineImpl* engine;
    TierId tier;
  } context{this, tier.id};
  const std::optional<uint32_t> victim = queue.order->Victim(
      [](void* raw, uint32_t entry) {
        const Context& c = *static_cast<const Context*>(raw);
        return c.engine->MayLeave(EntryId{entry}, c.tier);
      },
      &context);
  if (!victim) return Room::kNone;
  if (++queue.since_rebalance >= kRebalanceEvery) {
    queue.since_rebalance = 0;
    Rebalance(tier, slot_class, EntryId{*victim});
  }
  return MoveAway(EntryId{*victim}, tier.id, tier.id.value + 1u, /*on_demand=*/true, std::nullopt);
}

std::optional<ArenaId> EngineImpl::LeastValuableArena(const Tier& tier, const SlotClass& not_of,
                                                      uint64_t used_before) const {
  std::optional<ArenaId> best;
  uint64_t best_use = used_before;
  for (const auto& [id, arena] : tier.arenas->arenas()) {
    if (arena.state != ArenaState::kReady || SlotClass{arena.spec.tenant, arena.spec.slot_bytes} == not_of)
      continue;
    uint64_t last_use = 0;
    bool held = false;
    for (const uint32_t owner : arena.owners) {
      if (owner == ArenaAllocator::kNoOwner) continue;
      const Entry& entry = table_.at(EntryId{owner});
      const Copy& copy = table_.copy(entry, tier.id);
      held |= copy.lease_pins > 0;
      last_use = std::max(last_use, entry.last_use);
    }
    if (held || last_use >= best_use) continue;
    best = arena.spec.id;
    best_use = last_use;
  }
  return best;
}

void EngineImpl::Rebalance(Tier& tier, const SlotClass& for_class, EntryId own_victim) {
  if (!tier.draining.empty()) return;
  const std::optional<ArenaId> arena = LeastValuableArena(tier, for_class, table_.at(own_victim).last_use);
  if (!arena) return;
  tier.arenas->Drain(*arena);
  tier.draining.push_back(*arena);
  ++changes_;
}

bool EngineImpl::ReclaimEmpty(Tier& tier, const SlotClass& for_class) {
  if (now_ < tier.create_arenas_after) return false;
  const uint64_t needed = ArenaBytes(1, for_class.slot_bytes);
  while (ComingBytes(tier) < needed) {
    // Somebody holds on to what was retired: more would only be lost to it as well.
    const bool overdue = std::ranges::any_of(
        retired_, [&](const auto& item) { return item.second.tier == tier.id && !ComesSoon(item.second); });
    const auto& empty = tier.arenas->empty_arenas();
    const auto spare = std::ranges::find_if(empty, [&](uint32_t id) {
      const ArenaSpec& spec = tier.arenas->arena(ArenaId{id}).spec;
      return ladder_.QueueOf(tier, {spec.tenant, spec.slot_bytes}).waiting.empty();
    });
    if (overdue || spare == empty.end()) return false;
    RetireArena(tier, ArenaId{*spare});
  }
  return true;
}

bool EngineImpl::ComesSoon(const RetiredArena& retired) const {
  return retired.destroying || now_ - retired.since < kUnmapPatience;
}

uint64_t EngineImpl::ComingBytes(const Tier& tier) const {
  uint64_t bytes = tier.arenas->unplanned_bytes();
  for (const auto& [id, retired] : retired_) {
    if (retired.tier == tier.id && ComesSoon(retired)) bytes += tier.arenas->arena(id).bytes();
  }
  return bytes;
}

bool EngineImpl::Reclaim(Tier& tier, const SlotClass& for_class) {
  const uint64_t needed = ArenaBytes(1, for_class.slot_bytes);
  uint64_t promised = ComingBytes(tier);
  for (const ArenaId id : tier.draining) promised += tier.arenas->arena(id).bytes();
  while (promised < needed) {
    const std::optional<ArenaId> arena = LeastValuableArena(tier, for_class, UINT64_MAX);
    if (!arena) return false;
    promised += tier.arenas->arena(*arena).bytes();
    tier.arenas->Drain(*arena);
    tier.draining.push_back(*arena);
    ++changes_;
  }
  // Creating may be held back for a while: that is nothing to wait for.
  return now_ >= tier.create_arenas_after;
}

void EngineImpl::AdvanceDrains(Tier& tier) {
  std::vector<ArenaId> left;
  for (const ArenaId id : std::exchange(tier.draining, {})) {
    bool held = false;
    const std::vector<uint32_t> owners = tier.arenas->arena(id).owners;
    for (const uint32_t owner : owners) {
      if (owner == ArenaAllocator::kNoOwner) continue;
      held |= table_.copy(EntryId{owner}, tier.id).lease_pins > 0;
    }
    if (held) {  // somebody reads from it: it stays
      tier.arenas->Undrain(id);
      ++changes_;
      continue;
    }
    for (const uint32_t owner : owners) {
      if (owner == ArenaAllocator::kNoOwner || !MayLeave(EntryId{owner}, tier.id)) continue;
      if (IsBusyDemoting(tier)) break;
      MoveAway(EntryId{owner}, tier.id, tier.id.value + 1u, /*on_demand=*/true, std::nullopt);
    }
    if (tier.arenas->arena(id).empty()) {
      RetireArena(tier, id);
    } else {
      left.push_back(id);
    }
  }
  tier.draining.insert(tier.draining.end(), left.begin(), left.end());
}

void EngineImpl::RetireArena(Tier& tier, ArenaId id) {
  ++changes_;
  tier.arenas->Retire(id);
  const TenantId tenant = tier.arenas->arena(id).spec.tenant;
  RetiredArena& retired = retired_[id];
  retired.tier = tier.id;
  retired.since = now_;
  if (tier.host()) {
    for (const auto& [session_id, session] : sessions_) {
      if (session.tenant == tenant) retired.mapped_by.insert(session_id);
    }
    deps_.events.OnArenaRetired(id, tenant);
    timers_.Add({now_ + kUnmapPatience, TimerKind::kReclaim, id.value});
  }
  ReleaseRetired(id);
}

void EngineImpl::ReleaseRetired(ArenaId id) {
  RetiredArena& retired = retired_.at(id);
  if (!retired.mapped_by.empty() || retired.destroying) return;
  retired.destroying = true;
  EnqueueUrgent({.kind = PendingJob::Kind::kDestroyArena, .tier = retired.tier, .arena = id},
                DestroyArenaJob{id});
}

void EngineImpl::OnArenaUnmapped(SessionId session, ArenaId id) {
  const auto found = retired_.find(id);
  if (found == retired_.end() || found->second.mapped_by.erase(session) == 0) return;
  ReleaseRetired(id);
}

void EngineImpl::OnArenaDestroyed(const PendingJob& job) {
  ++changes_;
  retired_.erase(job.arena);
  ladder_.at(job.tier).arenas->Destroyed(job.arena);
}

}  // namespace kvtier
