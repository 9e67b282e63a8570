#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "tiers/cold_store.h"

namespace kvtier {

/// Hands out records of one append-only tier. Space comes back by whole segments: the caller drops what lives
/// in a victim, has it recycled under a new sequence number, and says so. Threads: single-owner. Pure
/// bookkeeping: touches no file.
class SegmentAllocator {
 public:
  SegmentAllocator(TierId tier, uint64_t segment_bytes, uint32_t segment_limit);

  /// What was found at start; before the first Append. Records that are kept follow by RecoverRecord.
  void Recover(const RecoveredSegment& segment);
  /// Whether the place is a record of a segment that was recovered.
  bool Knows(const Place& place) const;
  void RecoverRecord(const Place& place, uint32_t owner);

  bool CouldFit(uint64_t record_bytes) const {
    return limit_ > 0 && record_bytes <= segment_bytes_ - kColdSegmentHeaderBytes;
  }
  /// The next record for `owner` (a number of the caller's). Empty when every segment is taken.
  std::optional<Place> Append(uint64_t record_bytes, uint32_t owner);
  /// The record is dead: its bytes come back when the segment is recycled.
  void Release(const Place& place);

  /// The sealed segment with the least live bytes, the oldest of equals, for which `may_go` is true.
  std::optional<uint32_t> Victim(const std::function<bool(uint32_t segment)>& may_go) const;
  struct Record {
    uint32_t owner = 0;
    uint64_t offset = 0;
  };
  /// Every record appended since the segment was last recycled, live or not, in order.
  std::span<const Record> Records(uint32_t segment) const { return segments_[segment].records; }
  /// Of a segment without live records. Returns the sequence number to recycle it under.
  uint64_t BeginRecycle(uint32_t segment);
  void Recycled(uint32_t segment);
  /// It stays full of dead bytes: a victim again.
  void RecycleFailed(uint32_t segment);

  /// Segments that Append can open.
  uint32_t fresh_segments() const { return static_cast<uint32_t>(fresh_.size()); }
  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t capacity_bytes() const { return uint64_t{limit_} * segment_bytes_; }
  uint64_t segment_live_bytes(uint32_t segment) const { return segments_[segment].live_bytes; }
  void CheckInvariants() const;

 private:
  enum class State : uint8_t { kFresh, kOpen, kSealed, kRecycling };
  struct Segment {
    State state = State::kFresh;
    uint64_t sequence = 0;  ///< 0: never used
    uint64_t append_at = kColdSegmentHeaderBytes;
    uint64_t live_bytes = 0;
    std::vector<Record> records;
  };

  const TierId tier_;
  const uint64_t segment_bytes_;
  const uint32_t limit_;
  uint64_t next_sequence_ = 1;
  uint64_t live_bytes_ = 0;
  std::vector<Segment> segments_;
  std::set<uint32_t> fresh_;
  std::set<uint32_t> open_;  ///< at most one, with room left
};

}  // namespace kvtier
