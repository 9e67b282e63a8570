#include "tiers/segment_allocator.h"

#include <algorithm>

#include "tiers/base/check.h"

namespace kvtier {

SegmentAllocator::SegmentAllocator(TierId tier, uint64_t segment_bytes, uint32_t segment_limit,
                                   uint32_t segment_records)
    : tier_(tier),
      segment_bytes_(segment_bytes),
      limit_(segment_limit),
      segment_records_(segment_records),
      segments_(segment_limit) {
  for (uint32_t i = 0; i < limit_; ++i) fresh_.insert(i);
}

void SegmentAllocator::Recover(const RecoveredSegment& found) {
  if (found.number >= limit_)
    return;  // the capacity was larger once: such a segment is not written to any more
  Segment& segment = segments_[found.number];
  KVTIER_CHECK(segment.state == State::kFresh);
  segment.made = true;
  segment.sequence = found.sequence;
  segment.append_at = std::clamp(found.used_bytes, kColdSegmentHeaderBytes, segment_bytes_);
  segment.part = found.part.value_or(ColdPart::kBase);
  next_sequence_ = std::max(next_sequence_, found.sequence + 1);
  if (found.unopened) {
    segment.state = State::kLost;
    fresh_.erase(found.number);
    return;
  }
  // Recycled and not used yet: as before the restart.
  if (found.sequence != 0 && segment.append_at == kColdSegmentHeaderBytes) return;
  fresh_.erase(found.number);
  segment.state = State::kSealed;
  if (found.sequence == 0 || segment.append_at >= segment_bytes_ || !found.part.has_value()) return;
  // Only the newest of a stream goes on: the others were sealed with too little room for a record, and are
  // victims.
  std::set<uint32_t>& open = open_[IndexOf(segment.part)];
  if (!open.empty()) {
    const uint32_t other = *open.begin();
    if (segments_[other].sequence > found.sequence) return;
    segments_[other].state = State::kSealed;
    open.erase(other);
  }
  segment.state = State::kOpen;
  open.insert(found.number);
}

bool SegmentAllocator::Knows(const Place& place) const {
  if (place.container >= limit_) return false;
  const Segment& segment = segments_[place.container];
  return segment.sequence != 0 && segment.sequence == place.epoch && segment.part == place.part &&
         place.offset + place.bytes <= segment.append_at;
}

void SegmentAllocator::RecoverRecord(const Place& place, uint32_t owner) {
  KVTIER_CHECK(Knows(place));
  Segment& segment = segments_[place.container];
  AddRecord(segment, place.offset, owner);
  segment.live_bytes += place.bytes;
  live_bytes_[IndexOf(place.part)] += place.bytes;
}

void SegmentAllocator::AddRecord(Segment& segment, uint64_t offset, uint32_t owner) {
  segment.records.push_back({.owner = owner, .spot = static_cast<uint32_t>(offset / kSlotAlign)});
}

Place SegmentAllocator::PlaceOf(uint32_t number, uint64_t offset, uint64_t record_bytes) const {
  const Segment& segment = segments_[number];
  return {.tier = tier_,
          .part = segment.part,
          .container = number,
          .offset = offset,
          .bytes = record_bytes,
          .epoch = segment.sequence};
}

bool SegmentAllocator::NeedsSegment(uint64_t record_bytes, ColdPart part) const {
  return std::ranges::none_of(open_[IndexOf(part)],
                              [&](uint32_t number) { return Takes(segments_[number], record_bytes); });
}

std::optional<Place> SegmentAllocator::Append(uint64_t record_bytes, uint32_t owner, ColdPart part) {
  KVTIER_CHECK(record_bytes > 0 && record_bytes % kSlotAlign == 0 && CouldFit(record_bytes));
  std::set<uint32_t>& open = open_[IndexOf(part)];
  while (!open.empty()) {
    const uint32_t number = *open.begin();
    Segment& segment = segments_[number];
    if (!Takes(segment, record_bytes)) {
      segment.state = State::kSealed;
      segment.records.shrink_to_fit();
      open.erase(open.begin());
      continue;
    }
    const Place place = PlaceOf(number, segment.append_at, record_bytes);
    segment.append_at += record_bytes;
    segment.live_bytes += record_bytes;
    live_bytes_[IndexOf(part)] += record_bytes;
    AddRecord(segment, place.offset, owner);
    return place;
  }
  if (fresh_.empty()) return std::nullopt;
  const uint32_t number = *fresh_.begin();
  fresh_.erase(fresh_.begin());
  Segment& segment = segments_[number];
  segment.state = State::kOpen;
  segment.part = part;
  segment.append_at = kColdSegmentHeaderBytes;
  if (segment.sequence == 0) segment.sequence = next_sequence_++;
  open.insert(number);
  return Append(record_bytes, owner, part);
}

void SegmentAllocator::Release(const Place& place) {
  KVTIER_CHECK(place.tier == tier_ && place.container < limit_);
  Segment& segment = segments_[place.container];
  KVTIER_CHECK(segment.sequence == place.epoch && segment.part == place.part);
  KVTIER_CHECK(segment.live_bytes >= place.bytes);
  segment.live_bytes -= place.bytes;
  live_bytes_[IndexOf(place.part)] -= place.bytes;
}

std::optional<uint32_t> SegmentAllocator::Victim(const std::function<bool(uint32_t segment)>& may_go,
                                                 ColdPart part) const {
  std::optional<uint32_t> best;
  for (uint32_t i = 0; i < limit_; ++i) {
    const Segment& segment = segments_[i];
    if (!IsVictim(i, part)) continue;
    if (best) {
      const Segment& other = segments_[*best];
      if (std::pair(segment.live_bytes, segment.sequence) >= std::pair(other.live_bytes, other.sequence))
        continue;
    }
    if (may_go(i)) best = i;
  }
  return best;
}

bool SegmentAllocator::IsVictim(uint32_t number, ColdPart part) const {
  const Segment& segment = segments_[number];
  const bool goes_open = part != ColdPart::kBase && segment.state == State::kOpen;
  return (segment.state == State::kSealed || goes_open) && segment.part == part;
}

uint64_t SegmentAllocator::BeginRecycle(uint32_t number) {
  Segment& segment = segments_[number];
  KVTIER_CHECK((segment.state == State::kSealed || segment.state == State::kOpen) && segment.live_bytes == 0);
  open_[IndexOf(segment.part)].erase(number);
  segment.state = State::kRecycling;
  segment.records.clear();
  segment.sequence = next_sequence_++;
  return segment.sequence;
}

void SegmentAllocator::Recycled(uint32_t number, bool made) {
  KVTIER_CHECK(segments_[number].state == State::kRecycling);
  segments_[number].made = made;
  if (!made && shrunk_) return SetAside(number);
  segments_[number].state = State::kFresh;
  fresh_.insert(number);
}

void SegmentAllocator::SetAside(uint32_t number) {
  segments_[number].state = State::kAside;
  open_[IndexOf(segments_[number].part)].erase(number);
  fresh_.erase(number);
  ++aside_;
}

void SegmentAllocator::Seal(const Place& place) {
  Segment& segment = segments_[place.container];
  if (segment.state != State::kOpen || segment.sequence != place.epoch) return;
  segment.state = State::kSealed;
  open_[IndexOf(segment.part)].erase(place.container);
}

void SegmentAllocator::Made(const Place& place) {
  Segment& segment = segments_[place.container];
  segment.made = true;
  if (segment.state != State::kAside) return;
  segment.state = State::kSealed;  // set aside too early, by a write that failed beside this one
  --aside_;
}

bool SegmentAllocator::NoSpaceFor(const Place& place) {
  if (segments_[place.container].made) return false;
  shrunk_ = true;
  for (uint32_t i = 0; i < limit_; ++i) {
    const State state = segments_[i].state;
    if (!segments_[i].made && (state == State::kFresh || state == State::kOpen)) SetAside(i);
  }
  return true;
}

void SegmentAllocator::TryToGrow() {
  shrunk_ = false;
  for (uint32_t i = 0; i < limit_; ++i) {
    Segment& segment = segments_[i];
    // While writes to it are still failing, its records are theirs.
    if (segment.state != State::kAside || segment.live_bytes > 0) continue;
    segment.state = State::kFresh;
    segment.sequence = 0;
    segment.records.clear();
    fresh_.insert(i);
    --aside_;
  }
  shrunk_ = aside_ > 0;
}

void SegmentAllocator::RecycleFailed(uint32_t number) {
  KVTIER_CHECK(segments_[number].state == State::kRecycling);
  segments_[number].state = State::kSealed;
}

void SegmentAllocator::CheckInvariants() const {
  std::array<uint64_t, kColdParts> live{};
  uint32_t aside = 0;
  for (uint32_t i = 0; i < limit_; ++i) {
    const Segment& segment = segments_[i];
    live[IndexOf(segment.part)] += segment.live_bytes;
    KVTIER_CHECK(segment.live_bytes <= segment.append_at && segment.append_at <= segment_bytes_);
    KVTIER_CHECK((segment.state == State::kFresh) == fresh_.contains(i));
    for (int part = 0; part < kColdParts; ++part) {
      const bool is_open =
          segment.state == State::kOpen && IndexOf(segment.part) == static_cast<size_t>(part);
      KVTIER_CHECK(is_open == open_[part].contains(i));
    }
    if (segment.state == State::kFresh || segment.state == State::kRecycling)
      KVTIER_CHECK(segment.live_bytes == 0);
    aside += segment.state == State::kAside;
    KVTIER_CHECK(segment.state != State::kAside || (!segment.made && shrunk_));
  }
  KVTIER_CHECK(aside == aside_);
  KVTIER_CHECK(live == live_bytes_);
}

}  // namespace kvtier
