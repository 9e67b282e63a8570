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
  if (wants_spare && tier.segments->fresh_segments() == 0 && tier.recycles_in_flight == 0 &&
      !tier.circuit.open()) {
    RecycleSegment(tier);
  }
}

bool EngineImpl::SegmentMayGo(const Tier& tier, uint32_t segment) const {
  for (const SegmentAllocator::Record& record : tier.segments->Records(segment)) {
    const Copy& copy = table_.at(EntryId{record.owner}).copies[tier.id.value];
    const bool here =
        copy.place.container == segment && copy.place.offset == record.offset && copy.has_place();
    if (here && (copy.state != CopyState::kPresent || copy.pinned())) return false;
  }
  return true;
}

void EngineImpl::DropSegment(Tier& tier, uint32_t segment) {
  const auto records = tier.segments->Records(segment);
  for (const SegmentAllocator::Record& record : std::vector(records.begin(), records.end())) {
    const EntryId id{record.owner};
    const Entry& entry = table_.at(id);
    const Copy& copy = entry.copies[tier.id.value];
    const bool here =
        copy.place.container == segment && copy.place.offset == record.offset && copy.has_place();
    if (!here) continue;  // dead, or the row has another block by now
    ladder_.DropWithSegment(id, tier.id);
    if (entry.in_table && !entry.Stored() && !entry.storing) LeaveTable(id, tier.id, Reason::kCapacity);
    ForgetIfGone(id);
  }
}

bool EngineImpl::RecycleSegment(Tier& tier) {
  const std::optional<uint32_t> victim =
      tier.segments->Victim([this, &tier](uint32_t segment) { return SegmentMayGo(tier, segment); });
  if (!victim) return false;
  ++changes_;
  DropSegment(tier, *victim);
  FlushErases(tier);  // in order: no erase may hit the segment's next life
  const uint64_t sequence = tier.segments->BeginRecycle(*victim);
  ++tier.recycles_in_flight;
  ++forgets_ordered_;
  EnqueueCold({.kind = PendingJob::Kind::kRecycle, .tier = tier.id, .segment = *victim},
              RecycleJob{.tier = tier.id, .segment = *victim, .new_sequence = sequence});
  return true;
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
