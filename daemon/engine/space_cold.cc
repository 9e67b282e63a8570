#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Where a tier has at least this many segments, one is kept free ahead of need.
constexpr uint64_t kSegmentsForASpare = 8;

}  // namespace

void EngineImpl::PumpCold(Tier& tier) {
  FlushErases(tier);
  while (!tier.waiting.empty()) {
    Transfer& first = transfers_.at(tier.waiting.front());
    if (ladder_.TakePlace(first.entry, first.to, first.image_bytes)) {
      tier.waiting.pop_front();
      OrderMove(first);
      continue;
    }
    if (tier.recycles_in_flight > 0 || RecycleSegment(tier)) return;
    if (tier.moves_in_flight > 0) return;  // what is being written or read now can leave as soon as that ends
    return FailWaiting(tier.waiting);
  }
  const bool wants_spare = tier.segments->capacity_bytes() / tier.options.segment_bytes >= kSegmentsForASpare;
  const bool needs_spare = wants_spare && tier.segments->fresh_segments() == 0 &&
                           tier.recycles_in_flight == 0 && !tier.circuit.open();
  if (tier.draining_segment || needs_spare) RecycleSegment(tier);
}

bool EngineImpl::StandsIn(const Tier& tier, uint32_t segment, const SegmentAllocator::Record& record) const {
  // Not so when the record is dead, or the row has another block by now.
  const Copy& copy = table_.at(EntryId{record.owner}).copies[tier.id.value];
  return copy.place.container == segment && copy.place.offset == record.offset && copy.has_place();
}

bool EngineImpl::SegmentMayGo(const Tier& tier, uint32_t segment) const {
  for (const SegmentAllocator::Record& record : tier.segments->Records(segment)) {
    const Copy& copy = table_.at(EntryId{record.owner}).copies[tier.id.value];
    if (StandsIn(tier, segment, record) && (copy.state != CopyState::kPresent || copy.pinned())) return false;
  }
  return true;
}

void EngineImpl::DropSegment(Tier& tier, uint32_t segment) {
  const auto records = tier.segments->Records(segment);
  for (const SegmentAllocator::Record& record : std::vector(records.begin(), records.end())) {
    const EntryId id{record.owner};
    const Entry& entry = table_.at(id);
    if (!StandsIn(tier, segment, record)) continue;
    ladder_.DropWithSegment(id, tier.id);
    if (entry.in_table && !entry.Stored() && !entry.storing) LeaveTable(id, tier.id, Reason::kCapacity);
    ForgetIfGone(id);
  }
}

bool EngineImpl::RecycleSegment(Tier& tier) {
  if (tier.draining_segment) return DrainSegment(tier);
  const std::optional<uint32_t> victim =
      tier.segments->Victim([this, &tier](uint32_t segment) { return SegmentMayGo(tier, segment); });
  if (!victim) return false;
  ++changes_;
  const bool is_last = tier.id.value + 1u == ladder_.tiers().size();
  if (is_last) {
    OrderRecycle(tier, *victim);
    return true;
  }
  tier.draining_segment = victim;
  return DrainSegment(tier);
}

/// Moves what lives in the segment down the ladder, and recycles it once nothing does any more. True: it is
/// under way.
bool EngineImpl::DrainSegment(Tier& tier) {
  const uint32_t segment = *tier.draining_segment;
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
  ++forgets_ordered_;
  EnqueueCold({.kind = PendingJob::Kind::kRecycle, .tier = tier.id, .segment = segment},
              RecycleJob{.tier = tier.id, .segment = segment, .new_sequence = sequence});
}

void EngineImpl::OnRecycled(const PendingJob& job, const Status& status) {
  ++changes_;
  Tier& tier = ladder_.at(job.tier);
  --tier.recycles_in_flight;
  ++forgets_done_;
  // Not found: no write to it ever went well enough to make the file. The next one makes it.
  if (status.ok() || status.code() == Code::kNotFound) {
    tier.segments->Recycled(job.segment);
    return;
  }
  ++forgets_failed_;
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
    ++forgets_ordered_;
    EnqueueCold({.kind = PendingJob::Kind::kErase, .tier = tier.id}, std::move(erase));
  }
}

}  // namespace kvtier
