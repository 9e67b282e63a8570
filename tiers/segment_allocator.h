#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "tiers/cold_store.h"

namespace kvtier {

/// Segments that the live records of a tier cannot count on: the open one of each stream, and one that is
/// kept fresh for the next block.
inline constexpr uint32_t kReservedColdSegments = kColdParts + 1;

/// Hands out records of one append-only tier, in one stream of segments for each part of a block; a segment
/// belongs to the stream that opened it until it is recycled. Space comes back by whole segments: the caller
/// drops what lives in a victim, has it recycled under a new sequence number, and says so. Threads:
/// single-owner. Pure bookkeeping: touches no file.
class SegmentAllocator {
 public:
  /// `segment_records`: no more in a segment, however small.
  SegmentAllocator(TierId tier, uint64_t segment_bytes, uint32_t segment_limit,
                   uint32_t segment_records = UINT32_MAX);

  /// New uses of segments have this sequence and higher ones; before the first Append.
  void StartAt(uint64_t sequence) { next_sequence_ = std::max(next_sequence_, sequence); }
  /// What was found at start; before the first Append. Records that are kept follow by RecoverRecord.
  void Recover(const RecoveredSegment& segment);
  /// Whether the place is a record of a segment that was recovered.
  bool Knows(const Place& place) const;
  void RecoverRecord(const Place& place, uint32_t owner);

  bool CouldFit(uint64_t record_bytes) const {
    return limit_ > 0 && record_bytes <= segment_bytes_ - kColdSegmentHeaderBytes;
  }
  /// Whether the next record of the stream opens a segment.
  bool NeedsSegment(uint64_t record_bytes, ColdPart part) const;
  /// False while the disk had no space for a single segment.
  bool has_segments() const { return aside_ < limit_; }
  /// The next record for `owner` (a number of the caller's). Empty when every segment is taken.
  std::optional<Place> Append(uint64_t record_bytes, uint32_t owner, ColdPart part = ColdPart::kBase);
  /// The whole place of a record that lives at `offset`.
  Place PlaceOf(uint32_t segment, uint64_t offset, uint64_t record_bytes) const;
  /// The record is dead: its bytes come back when the segment is recycled.
  void Release(const Place& place);

  /// The segment of a stream with the least live bytes, the oldest of equals, for which `may_go` is true.
  /// Those of base records are sealed; tails go while their segment is open, too, so that none outlives a
  /// block that had to go.
  std::optional<uint32_t> Victim(const std::function<bool(uint32_t segment)>& may_go,
                                 ColdPart part = ColdPart::kBase) const;
  /// Whether Victim would look at the segment.
  bool IsVictim(uint32_t segment, ColdPart part) const;
  struct Record {
    uint32_t owner = 0;
    uint32_t spot = 0;  ///< its offset by kSlotAlign
  };
  /// Every record appended since the segment was last recycled, live or not, in order.
  std::span<const Record> Records(uint32_t segment) const { return segments_[segment].records; }
  /// Whose stream it is in; of a fresh segment without meaning.
  ColdPart PartOf(uint32_t segment) const { return segments_[segment].part; }
  /// The present use of the segment: Place::epoch of its records.
  uint64_t Sequence(uint32_t segment) const { return segments_[segment].sequence; }
  /// Of a segment without live records. Returns the sequence number to recycle it under.
  uint64_t BeginRecycle(uint32_t segment);
  /// `made`: it has a file.
  void Recycled(uint32_t segment, bool made);
  /// It stays full of dead bytes: a victim again.
  void RecycleFailed(uint32_t segment);

  /// Nothing more goes into the segment of `place`: what it holds may not be safe.
  void Seal(const Place& place);
  /// The segment of `place` was written to: it has a file, and its space.
  void Made(const Place& place);
  /// The disk is full. Segments without a file are set aside, so that the tier makes do with those that it
  /// has. False when that of `place` has one: then it is not for the want of a file that a write to it
  /// failed.
  bool NoSpaceFor(const Place& place);
  /// Tries those that were set aside again.
  void TryToGrow();
  bool shrunk() const { return shrunk_; }

  /// Segments that Append can open.
  uint32_t fresh_segments() const { return static_cast<uint32_t>(fresh_.size()); }
  uint32_t segment_limit() const { return limit_; }
  uint64_t live_bytes() const { return live_bytes_[0] + live_bytes_[1] + live_bytes_[2]; }
  uint64_t live_bytes(ColdPart part) const { return live_bytes_[IndexOf(part)]; }
  uint64_t capacity_bytes() const { return uint64_t{limit_} * segment_bytes_; }
  uint64_t segment_live_bytes(uint32_t segment) const { return segments_[segment].live_bytes; }
  void CheckInvariants() const;

 private:
  /// kLost: the file cannot be used.
  enum class State : uint8_t { kFresh, kOpen, kSealed, kRecycling, kAside, kLost };
  struct Segment {
    State state = State::kFresh;
    ColdPart part = ColdPart::kBase;
    bool made = false;      ///< has a file
    uint64_t sequence = 0;  ///< 0: never used
    uint64_t append_at = kColdSegmentHeaderBytes;
    uint64_t live_bytes = 0;
    std::vector<Record> records;
  };

  void SetAside(uint32_t number);
  bool Takes(const Segment& segment, uint64_t record_bytes) const {
    return segment.append_at + record_bytes <= segment_bytes_ && segment.records.size() < segment_records_;
  }
  static void AddRecord(Segment& segment, uint64_t offset, uint32_t owner);

  const TierId tier_;
  const uint64_t segment_bytes_;
  const uint32_t limit_;
  const uint32_t segment_records_;
  uint64_t next_sequence_ = 1;
  std::array<uint64_t, kColdParts> live_bytes_{};
  bool shrunk_ = false;
  uint32_t aside_ = 0;
  std::vector<Segment> segments_;
  std::set<uint32_t> fresh_;
  std::array<std::set<uint32_t>, kColdParts> open_;  ///< at most one of each stream, with room left
};

}  // namespace kvtier
