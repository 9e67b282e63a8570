#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

void CheckCopy(const Entry& entry, const Copy& copy, size_t tier) {
  KVTIER_CHECK((copy.state == CopyState::kPresent) == entry.Has(static_cast<uint32_t>(tier)));
  switch (copy.state) {
    case CopyState::kAbsent:
      KVTIER_CHECK(!copy.pinned() && !copy.has_place());
      break;
    case CopyState::kWriting:
      KVTIER_CHECK(!copy.pinned());
      break;
    case CopyState::kPresent:
      KVTIER_CHECK(copy.has_place() && copy.image_bytes > 0 && copy.image_bytes <= copy.place_bytes());
      break;
    case CopyState::kFreeing:
      KVTIER_CHECK(copy.has_place() && copy.pinned());
      break;
  }
}

}  // namespace

void Ladder::CheckInvariants() const {
  uint64_t copies = 0, writing = 0;
  for (const Tier& tier : tiers_) {
    std::array<uint64_t, kPrecisions> blocks{};
    std::array<uint64_t, kColdParts> parts{};
    parts[IndexOf(ColdPart::kBase)] = tier.rewriting_bytes;
    uint64_t used = tier.rewriting_bytes, unleased = 0, fp16 = 0;
    std::unordered_map<uint32_t, uint32_t> leased_copies;
    for (uint32_t row = 0; row < table_.row_limit(); ++row) {
      const EntryId id{row};
      const Entry& entry = table_.at(id);
      const Copy& copy = table_.copy(entry, tier.id);
      if (!table_.live(id)) {
        KVTIER_CHECK(!entry.HasAnyCopy() && !entry.in_table);
        continue;
      }
      CheckCopy(entry, copy, tier.id.value);
      copies += copy.state != CopyState::kAbsent;
      writing += copy.state == CopyState::kWriting;
      used += CheckTails(id, tier, parts);
      if (copy.has_place()) {
        const Place place = PlaceOf(copy);
        KVTIER_CHECK(place.tier == tier.id && copy.tier == tier.id);
        used += place.bytes;
        parts[IndexOf(place.part)] += place.bytes;
        if (tier.cold() && copy.lease_pins > 0) ++leased_copies[place.container];
        if (tier.has_slots()) {
          const ArenaAllocator::Arena& arena = tier.arenas->arena(ArenaId{place.container});
          KVTIER_CHECK(arena.owners[place.slot] == row && arena.spec.tenant == entry.tenant);
        }
      }
      KVTIER_CHECK(copy.state == CopyState::kAbsent || tier.TakesBlocksOf(entry.tenant));
      if (copy.state != CopyState::kPresent) continue;
      ++blocks[static_cast<size_t>(entry.precision[tier.id.value])];
      KVTIER_CHECK(entry.precision[tier.id.value] >= entry.floor);
      unleased += copy.lease_pins == 0;
      fp16 += Fp16Bytes(entry);
    }
    KVTIER_CHECK(blocks == tier.blocks && used == tier.used_bytes() && fp16 == tier.fp16_bytes);
    uint64_t ordered = tier.has_slots() ? 0 : tier.order->size();
    for (const auto& [slot_class, queue] : tier.classes) ordered += queue.order->size();
    KVTIER_CHECK(ordered == unleased && leased_copies == tier.leased_copies);
    if (tier.has_slots()) {
      tier.arenas->CheckInvariants();
    } else {
      tier.segments->CheckInvariants();
      for (const ColdPart part : {ColdPart::kBase, ColdPart::kKTail, ColdPart::kVTail}) {
        KVTIER_CHECK(tier.segments->live_bytes(part) == parts[IndexOf(part)]);
      }
    }
  }
  KVTIER_CHECK(copies == table_.copies().size() && writing == writers_.size());
}

/// Adds the bytes of a block's tails to `parts`, and returns them.
uint64_t Ladder::CheckTails(EntryId id, const Tier& tier, std::array<uint64_t, kColdParts>& parts) const {
  const Copy& copy = table_.copy(id, tier.id);
  KVTIER_CHECK(!copy.in_parts || (tier.cold() && copy.state != CopyState::kWriting));
  if (tier.has_slots()) return 0;
  uint64_t bytes = 0;
  for (const ColdPart part : kColdTails) {
    const Place place = TailPlace(id, tier.id, part);
    if (place.bytes == 0) continue;
    KVTIER_CHECK(copy.has_place() && tier.segments->Knows(place));
    KVTIER_CHECK(copy.in_parts || copy.state == CopyState::kWriting);
    parts[IndexOf(part)] += place.bytes;
    bytes += place.bytes;
  }
  if (!copy.in_parts) return bytes;
  KVTIER_CHECK(TailPlace(id, tier.id, ColdPart::kKTail).bytes > 0 && copy.codec == RungWithTails(id, tier));
  return bytes;
}

void EngineImpl::CheckInvariants() const {
  ladder_.CheckInvariants();
  CheckPins();
  CheckQueues();
  uint64_t unsettled = 0, stored = 0;
  for (const auto& [id, op] : puts_) {
    // A put that is still being read counts all its blocks as offered.
    unsettled += op.unsettled;
  }
  const uint64_t ended = metrics_.puts_stored.Get() + metrics_.puts_present.Get() +
                         metrics_.puts_rejected.Get() + metrics_.puts_dropped.Get();
  KVTIER_CHECK(metrics_.puts_offered.Get() == ended + unsettled);
  for (uint32_t row = 0; row < table_.row_limit(); ++row) {
    const EntryId id{row};
    if (!table_.live(id)) continue;
    const Entry& entry = table_.at(id);
    KVTIER_CHECK(entry.in_table || entry.HasAnyCopy() || entry.storing);
    KVTIER_CHECK(entry.storing == storing_.contains(id));
    if (!entry.in_table) {
      KVTIER_CHECK(!entry.Stored());
      continue;
    }
    KVTIER_CHECK(entry.Stored() || entry.storing);
    KVTIER_CHECK(table_.Find(entry.tenant, entry.key) == id);
    stored += entry.Stored();
  }
  uint64_t counted = 0;
  for (const Model& model : models_.models()) counted += model.blocks;
  KVTIER_CHECK(counted == stored);
}

void EngineImpl::CheckPins() const {
  using Place = std::pair<EntryId, TierId>;
  std::map<Place, uint32_t> lease_pins, job_pins;
  uint64_t granted = 0;
  for (const auto& [session_id, session] : sessions_) {
    std::array<uint64_t, kMaxTiers> bytes{};
    for (const auto& [lease_id, lease] : session.leases) {
      granted += lease.pending == OpId{};
      KVTIER_CHECK(lease.pending == OpId{} || acquires_.contains(lease.pending));
      for (const Lease::Pinned& pin : lease.pins) {
        ++lease_pins[{pin.entry, pin.tier}];
        bytes[pin.tier.value] += pin.bytes;
      }
    }
    KVTIER_CHECK(bytes == session.pinned_bytes);
  }
  KVTIER_CHECK(metrics_.leases_live.Get() == static_cast<int64_t>(granted));
  for (const auto& [id, transfer] : transfers_) {
    if (transfer.from) ++job_pins[{transfer.entry, *transfer.from}];
    const Copy& copy = table_.copy(transfer.entry, transfer.to);
    KVTIER_CHECK(copy.state == CopyState::kWriting && ladder_.WriterOf(transfer.entry, transfer.to) == id);
    KVTIER_CHECK(copy.has_place() == (transfer.stage != Transfer::Stage::kSeeking));
  }
  for (const auto& [id, job] : jobs_) {
    if (job.kind == PendingJob::Kind::kVerify) ++job_pins[{job.entry, job.tier}];
  }
  for (const auto& [op, rewrite] : rewrites_) ++job_pins[{rewrite.entry, rewrite.tier}];
  for (uint32_t row = 0; row < table_.row_limit(); ++row) {
    const EntryId id{row};
    if (!table_.live(id)) continue;
    for (const Tier& tier : ladder_.tiers()) {
      const Copy& copy = table_.copy(id, tier.id);
      const auto leases = lease_pins.find({id, tier.id});
      const auto jobs = job_pins.find({id, tier.id});
      KVTIER_CHECK(copy.lease_pins == (leases == lease_pins.end() ? 0 : leases->second));
      KVTIER_CHECK(copy.job_pins == (jobs == job_pins.end() ? 0 : jobs->second));
      if (copy.state == CopyState::kWriting) KVTIER_CHECK(transfers_.contains(ladder_.WriterOf(id, tier.id)));
    }
  }
}

void EngineImpl::CheckQueues() const {
  uint64_t waiting = 0, seeking = 0;
  for (const auto& [id, transfer] : transfers_) seeking += transfer.stage == Transfer::Stage::kSeeking;
  const auto check = [&](const std::deque<TransferId>& queue, TierId tier) {
    for (const TransferId id : queue) {
      const auto found = transfers_.find(id);
      KVTIER_CHECK(found != transfers_.end() && found->second.to == tier);
      KVTIER_CHECK(found->second.stage == Transfer::Stage::kSeeking);
    }
    waiting += queue.size();
  };
  for (const Tier& tier : ladder_.tiers()) {
    check(tier.waiting, tier.id);
    std::map<SlotClass, uint32_t> frees;
    uint32_t demotions = 0, moves = 0;
    for (const auto& [id, transfer] : transfers_) {
      if (transfer.overdue) continue;
      if (transfer.stage != Transfer::Stage::kSeeking)
        moves += (transfer.to == tier.id) + (transfer.from == tier.id);
      if (transfer.purpose != Purpose::kDemote || transfer.from != tier.id) continue;
      ++demotions;
      ++frees[transfer.source_class];
    }
    for (const auto& [id, job] : jobs_) moves += job.kind == PendingJob::Kind::kVerify && job.tier == tier.id;
    const auto rewrites =
        std::ranges::count_if(rewrites_, [&tier](const auto& item) { return item.second.tier == tier.id; });
    KVTIER_CHECK(static_cast<uint32_t>(rewrites) == tier.rewrites_in_flight);
    KVTIER_CHECK(demotions == tier.demotions_in_flight && moves == tier.moves_in_flight);
    for (const auto& [slot_class, queue] : tier.classes) {
      check(queue.waiting, tier.id);
      KVTIER_CHECK(queue.frees_coming == frees[slot_class]);
    }
  }
  KVTIER_CHECK(waiting == seeking);
}

}  // namespace kvtier
