#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Where a tier has at least this many segments, some are kept clean ahead of the writers: one in
/// kSegmentsOfASpare, at most kMaxSpares.
constexpr uint64_t kSegmentsForASpare = 8;
constexpr uint64_t kSegmentsOfASpare = 16, kMaxSpares = 4;
/// Fresh segments that no tail takes: the next block's.
constexpr uint32_t kFreshForBases = 1;

}  // namespace

uint64_t EngineImpl::SparesOf(const Tier& tier) {
  const uint64_t segments = tier.segments->capacity_bytes() / tier.options.segment_bytes;
  if (segments < kSegmentsForASpare) return 0;
  if (tier.options.keep_tails) return 1;  // more are clean as soon as tails are given up
  return std::clamp<uint64_t>(segments / kSegmentsOfASpare, 1, kMaxSpares);
}

void EngineImpl::PumpCold(Tier& tier) {
  FlushErases(tier);
  if (tier.segments->shrunk() && now_ >= tier.grow_after) {
    tier.segments->TryToGrow();
    tier.grow_after = now_ + kGrowPause;
  }
  while (!tier.waiting.empty()) {
    Transfer& first = transfers_.at(tier.waiting.front());
    const Places places = TakeColdPlaces(tier, first);
    if (places == Places::kTaken) {
      tier.waiting.pop_front();
      OrderMove(first);
      continue;
    }
    if (places == Places::kNoneForTail) {
      if (TailRoomIsComing(tier, first)) return;
      GiveTailsUp(tier, first, ColdPart::kKTail);
      continue;
    }
    if (tier.recycles_in_flight > 0 || RecycleSegment(tier, ColdPart::kBase)) return;
    if (tier.moves_in_flight > 0) return;  // what is being written or read now can leave as soon as that ends
    return FailWaiting(tier.waiting);
  }
  const bool needs_spare =
      tier.segments->fresh_segments() + tier.recycles_in_flight < SparesOf(tier) && !tier.circuit.open();
  if (tier.draining_segment || needs_spare) RecycleSegment(tier, ColdPart::kBase);
}

/// All places that the transfer needs, or none. Tails never take the last fresh segments, and V tails make
/// nobody wait.
EngineImpl::Places EngineImpl::TakeColdPlaces(Tier& tier, Transfer& transfer) {
  const SegmentAllocator& segments = *tier.segments;
  const auto opens = [&](uint64_t bytes, ColdPart part) {
    return segments.NeedsSegment(ColdRecordBytes(bytes), part) ? 1u : 0u;
  };
  uint32_t fresh = segments.fresh_segments();
  const uint32_t for_base = opens(transfer.image_bytes, ColdPart::kBase);
  if (for_base > fresh) return Places::kNoneForBase;
  fresh -= for_base;
  for (const ColdPart part : kColdTails) {
    const uint64_t bytes = transfer.tail_bytes[TailIndex(part)];
    if (bytes == 0) break;
    const uint32_t for_tail = opens(bytes, part);
    if (for_tail > 0 && fresh <= kFreshForBases) {
      if (part == ColdPart::kKTail) return Places::kNoneForTail;
      GiveTailsUp(tier, transfer, part);
      break;
    }
    fresh -= for_tail;
  }
  KVTIER_CHECK(ladder_.TakePlace(transfer.entry, tier.id, transfer.image_bytes));
  for (const ColdPart part : kColdTails) {
    const uint64_t bytes = transfer.tail_bytes[TailIndex(part)];
    if (bytes > 0) KVTIER_CHECK(ladder_.TakeTail(transfer.entry, tier.id, part, bytes));
  }
  return Places::kTaken;
}

void EngineImpl::GiveTailsUp(Tier& tier, Transfer& transfer, ColdPart from) {
  for (const ColdPart part : kColdTails) {
    uint64_t& bytes = transfer.tail_bytes[TailIndex(part)];
    if (part < from || bytes == 0) continue;
    bytes = 0;
    tier.metrics->tails_no_room[TailIndex(part)].Add();
  }
}

/// A K tail takes the room of V tails, and of what is dead; nothing else. False: there is not enough of it.
bool EngineImpl::TailRoomIsComing(Tier& tier, const Transfer& transfer) {
  const SegmentAllocator& segments = *tier.segments;
  const uint32_t wanted =
      kFreshForBases + 1 + segments.NeedsSegment(ColdRecordBytes(transfer.image_bytes), ColdPart::kBase);
  uint32_t coming = segments.fresh_segments() + tier.recycles_in_flight;
  // Only if that is enough are V tails given up for it.
  uint32_t could_come = coming;
  for (uint32_t i = 0; i < segments.segment_limit() && could_come < wanted; ++i) {
    could_come += GoesFor(tier, i, ColdPart::kKTail) ? 1 : 0;
  }
  if (could_come < wanted) return false;
  while (coming < wanted && RecycleSegment(tier, ColdPart::kKTail)) ++coming;
  return tier.recycles_in_flight > 0;
}

bool EngineImpl::GoesFor(const Tier& tier, uint32_t segment, ColdPart needed_by) const {
  const SegmentAllocator& segments = *tier.segments;
  const ColdPart part = segments.PartOf(segment);
  if (!segments.IsVictim(segment, part) || segment == tier.draining_segment) return false;
  const bool of_less_use = needed_by == ColdPart::kBase || part > needed_by;
  return (of_less_use || segments.segment_live_bytes(segment) == 0) && SegmentMayGo(tier, segment);
}

/// What goes first when a record of a part needs a segment: what is empty, then V tails, K tails, blocks; for
/// a tail nothing of as much use.
std::optional<uint32_t> EngineImpl::ColdVictim(const Tier& tier, ColdPart needed_by) const {
  std::optional<uint32_t> first;
  for (const ColdPart part : {ColdPart::kVTail, ColdPart::kKTail, ColdPart::kBase}) {
    const std::optional<uint32_t> victim =
        tier.segments->Victim([&](uint32_t segment) { return GoesFor(tier, segment, needed_by); }, part);
    if (!victim) continue;
    if (tier.segments->segment_live_bytes(*victim) == 0) return victim;
    if (!first) first = victim;
  }
  return first;
}

bool EngineImpl::StandsIn(const Tier& tier, uint32_t segment, const SegmentAllocator::Record& record) const {
  // Not so when the record is dead, or the row has another block by now.
  const EntryId id{record.owner};
  const ColdPart part = tier.segments->PartOf(segment);
  if (part == ColdPart::kBase) {
    const Copy& copy = table_.copy(id, tier.id);
    return copy.has_place() && copy.container == segment && copy.spot == record.spot;
  }
  const TailSpot tail = tier.tails.Find(id, part);
  return tail.there() && tail.segment == segment && tail.offset_blocks == record.spot;
}

bool EngineImpl::SegmentMayGo(const Tier& tier, uint32_t segment) const {
  for (const SegmentAllocator::Record& record : tier.segments->Records(segment)) {
    const Copy& copy = table_.copy(EntryId{record.owner}, tier.id);
    if (StandsIn(tier, segment, record) && (copy.state != CopyState::kPresent || copy.pinned())) return false;
  }
  return true;
}

void EngineImpl::DropSegment(Tier& tier, uint32_t segment) {
  const auto records = tier.segments->Records(segment);
  const ColdPart part = tier.segments->PartOf(segment);
  for (const SegmentAllocator::Record& record : std::vector(records.begin(), records.end())) {
    const EntryId id{record.owner};
    if (!StandsIn(tier, segment, record)) continue;
    if (part != ColdPart::kBase) {
      ladder_.DropTail(id, tier.id, part, Ladder::Erasing::kWithSegment);
      tier.metrics->tails_reclaimed[TailIndex(part)].Add();
      continue;
    }
    const Entry& entry = table_.at(id);
    CountDeparture(id, tier.id, Reason::kCapacity);
    ladder_.DropWithSegment(id, tier.id);
    if (entry.in_table && !entry.Stored() && !entry.storing) LeaveTable(id, tier.id, Reason::kCapacity);
    ForgetIfGone(id);
  }
}

/// True: a segment is on its way to the part that needs it.
bool EngineImpl::RecycleSegment(Tier& tier, ColdPart needed_by) {
  if (tier.draining_segment && needed_by == ColdPart::kBase && DrainSegment(tier)) return true;
  const std::optional<uint32_t> victim = ColdVictim(tier, needed_by);
  if (!victim) return false;
  ++changes_;
  const bool holds_blocks =
      tier.segments->PartOf(*victim) == ColdPart::kBase && tier.segments->segment_live_bytes(*victim) > 0;
  if (!holds_blocks || (IsLast(tier) && !StartRewrites(tier, *victim))) {
    OrderRecycle(tier, *victim);
    return true;
  }
  tier.draining_segment = victim;
  return DrainSegment(tier);
}

/// Moves what lives in the segment down the ladder, and recycles it once nothing does any more; on the last
/// tier, once what is written again is. True: it is under way.
bool EngineImpl::DrainSegment(Tier& tier) {
  const uint32_t segment = *tier.draining_segment;
  if (IsLast(tier)) {
    if (!AdvanceRewrites(tier)) return true;
    ++changes_;
    tier.draining_segment.reset();
    const bool may_go = SegmentMayGo(tier, segment);
    if (may_go) OrderRecycle(tier, segment);
    return may_go;
  }
  bool any_left = false;
  const auto records = tier.segments->Records(segment);
  for (const SegmentAllocator::Record& record : std::vector(records.begin(), records.end())) {
    if (!StandsIn(tier, segment, record)) continue;
    const EntryId id{record.owner};
    if (!MayLeave(id, tier.id)) {  // being read, or on its way
      any_left = true;
      continue;
    }
    const Room room = MoveAway(id, tier.id, tier.id.value + 1u, /*on_demand=*/true, std::nullopt);
    if (room == Room::kFreed) continue;
    any_left = true;
    if (room == Room::kBusy) break;
  }
  if (any_left) return true;
  ++changes_;
  tier.draining_segment.reset();
  OrderRecycle(tier, segment);
  return true;
}

void EngineImpl::OrderRecycle(Tier& tier, uint32_t segment) {
  DropSegment(tier, segment);
  FlushErases(tier);  // in order: no erase may hit the segment's next life
  const uint64_t sequence = tier.segments->BeginRecycle(segment);
  ++tier.recycles_in_flight;
  ++tier.forgets_ordered;
  EnqueueCold({.kind = PendingJob::Kind::kRecycle, .tier = tier.id, .segment = segment},
              RecycleJob{.tier = tier.id, .segment = segment, .new_sequence = sequence});
}

void EngineImpl::OnRecycled(const PendingJob& job, const Status& status) {
  ++changes_;
  Tier& tier = ladder_.at(job.tier);
  --tier.recycles_in_flight;
  ++tier.forgets_done;
  // Not found: no write to it ever went well enough to make the file. The next one makes it.
  if (status.ok() || status.code() == Code::kNotFound) {
    tier.segments->Recycled(job.segment, status.ok());
    return;
  }
  ++tier.forgets_failed;
  tier.segments->RecycleFailed(job.segment);
  tier.metrics->write_errors.Add();
  tier.circuit.OnFailure(now_);
  FailWaiting(tier.waiting);
}

void EngineImpl::FlushErases(Tier& tier) {
  while (!tier.to_erase.empty()) {
    const size_t count = std::min(kEraseBatch, tier.to_erase.size());
    EraseJob erase{.tier = tier.id, .items = {}};
    erase.items.assign(tier.to_erase.end() - static_cast<ptrdiff_t>(count), tier.to_erase.end());
    tier.to_erase.resize(tier.to_erase.size() - count);
    ++tier.forgets_ordered;
    EnqueueCold({.kind = PendingJob::Kind::kErase, .tier = tier.id}, std::move(erase));
  }
}

}  // namespace kvtier
