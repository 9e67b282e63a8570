#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "tiers/cold_recovery.h"
#include "tiers/cxl_store.h"

// How a CXL store finds what it holds: there is no index, so at every start by its segments.

namespace kvtier {

namespace {

/// A start has so many sequences for itself.
constexpr unsigned kSerialShift = 32;

/// A segment where it stands.
class MappedSegmentBytes final : public SegmentBytes {
 public:
  explicit MappedSegmentBytes(std::span<const std::byte> segment) : segment_(segment) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          AlignedBuffer& /*buffer*/) override {
    if (offset > segment_.size() || bytes > segment_.size() - offset) {
      return Status(Code::kDataLoss, "beyond the segment");
    }
    return segment_.subspan(offset, bytes);
  }

 private:
  const std::span<const std::byte> segment_;
};

template <typename Header>
Header HeaderAt(std::span<const std::byte> segment, uint64_t offset) {
  Header header;
  std::memcpy(&header, segment.data() + offset, sizeof(header));
  return header;
}

/// What a dead record is written for where the header does not say what it was of.
ColdRecord BlockAt(uint32_t segment, uint64_t sequence, uint64_t offset) {
  ColdRecord record;
  record.place.container = segment;
  record.place.epoch = sequence;
  record.place.offset = offset;
  record.place.bytes = kColdBlockBytes;
  return record;
}

}  // namespace

Result<ColdRecovery> CxlStore::Recover() {
  KVTIER_CHECK(!recovered_);
  ColdRecovery out;
  // What was cut off a file since reads as zeros now, also where a record began before.
  const uint64_t used =
      CxlSegmentOffset(std::min(segment_limit_, superblock_.segment_limit), options_.segment_bytes);
  const bool was_clean = superblock_.clean == 1 && memory_->stale_bytes() >= used;
  KVTIER_TRY(AdoptSegments(out));
  // Before anything else is written: from here on only another clean stop makes the headers enough.
  CxlSuperblock in_use = superblock_;
  in_use.clean = 0;
  in_use.segment_limit = segment_limit_;
  KVTIER_TRY(WriteSuperblock(in_use));
  // A sequence must not come again, though the segment that had it may be among those that were given up
  // since: records of it may stand there still, and clients of an earlier daemon know it.
  out.least_sequence = superblock_.serial << kSerialShift;
  std::vector<ColdRecord> damaged;
  std::vector<ColdRecord> found = ScanSegments(
      was_clean && out.damaged_headers == 0 ? ScanDepth::kHeaders : ScanDepth::kImages, out, damaged);
  out.dropped_records += damaged.size();
  // So that they are dropped once. Where it fails the next start drops them again.
  MarkDead(damaged).IgnoreBecause("no start takes them for blocks");
  if (!was_clean) out.scanned_records = found.size();
  KVTIER_TRY(MergeCopies(std::move(found), out));
  out.models = models_.Load(out.dropped_records);
  KeepBlocksOfKnownModels(out);
  for (RecoveredBlock& block : out.blocks) {
    block.place.tier = block.k_tail.place.tier = block.v_tail.place.tier = options_.tier;
  }
  recovered_ = true;
  return out;
}

Status CxlStore::AdoptSegments(ColdRecovery& out) {
  // What stands above the segments of the last use is nobody's: never used, or of a time when there were
  // more.
  for (uint32_t number = superblock_.segment_limit; number < segment_limit_; ++number) {
    const uint64_t offset = CxlSegmentOffset(number, options_.segment_bytes);
    if (IsZero(SegmentSpan(number).first(kColdSegmentHeaderBytes))) continue;
    memory_->Zero(offset, kColdSegmentHeaderBytes);
    KVTIER_TRY(memory_->Persist(offset, kColdSegmentHeaderBytes));
  }
  for (uint32_t number = 0; number < std::min(segment_limit_, superblock_.segment_limit); ++number) {
    KVTIER_TRY(AdoptSegment(number, out));
  }
  return Status::Ok();
}

Status CxlStore::AdoptSegment(uint32_t number, ColdRecovery& out) {
  const std::span<const std::byte> bytes = SegmentSpan(number);
  if (IsZero(bytes.first(kColdSegmentHeaderBytes))) return Status::Ok();
  const auto header = HeaderAt<SegmentHeader>(bytes, 0);
  const Status sound = CheckSegmentHeader(header, superblock_.uuid, number, options_.segment_bytes);
  if (sound.code() == Code::kFailedPrecondition) {
    // Not a segment of this store: as if it was blank, and from now on it is.
    ++out.foreign_files;
    const uint64_t offset = CxlSegmentOffset(number, options_.segment_bytes);
    memory_->Zero(offset, kColdSegmentHeaderBytes);
    return memory_->Persist(offset, kColdSegmentHeaderBytes);
  }
  Segment& segment = segments_[number];
  segment.present = true;
  segment.sequence = header.sequence;
  if (sound.ok()) return Status::Ok();
  ++out.damaged_headers;
  segment.sequence = SequenceByRecords(number);
  segment.damaged = segment.sequence == 0;
  if (segment.damaged) return Status::Ok();
  WriteSegmentHeader(number, segment.sequence);
  return memory_->Persist(CxlSegmentOffset(number, options_.segment_bytes), kColdSegmentHeaderBytes);
}

/// The use of a segment whose header is damaged: that of its newest record; 0 without any. Should a newer use
/// have been begun that wrote nothing yet, then evicted blocks come back, whole. A record may be spelled out
/// in a block, by a tenant who knows the uuid: sequences that no start can have given yet do not count.
uint64_t CxlStore::SequenceByRecords(uint32_t number) const {
  const std::span<const std::byte> bytes = SegmentSpan(number);
  const uint64_t end = (superblock_.serial + 1) << kSerialShift;
  uint64_t sequence = 0;
  for (uint64_t at = kColdSegmentHeaderBytes; at < bytes.size(); at += kColdBlockBytes) {
    const auto header = HeaderAt<RecordHeader>(bytes, at);
    const RecordExpectation expected{.uuid = superblock_.uuid,
                                     .segment = number,
                                     .sequence = header.sequence,
                                     .offset = at,
                                     .limit_bytes = bytes.size()};
    if (header.sequence < end && CheckRecordHeader(header, expected).ok())
      sequence = std::max(sequence, header.sequence);
  }
  return sequence;
}

std::vector<ColdRecord> CxlStore::ScanSegments(ScanDepth depth, ColdRecovery& out,
                                               std::vector<ColdRecord>& damaged) {
  std::vector<ColdRecord> all;
  ColdScanner scanner(superblock_.uuid, depth);
  for (uint32_t number = 0; number < segment_limit_; ++number) {
    const Segment& segment = segments_[number];
    if (!segment.present) continue;
    RecoveredSegment found{
        .number = number, .sequence = segment.sequence, .used_bytes = kColdSegmentHeaderBytes};
    if (segment.damaged) {
      found.used_bytes = options_.segment_bytes;
    } else {
      MappedSegmentBytes bytes(SegmentSpan(number));
      ColdScanner::Outcome outcome;
      scanner.Scan(bytes,
                   {.number = number, .sequence = segment.sequence, .file_bytes = options_.segment_bytes},
                   {kColdSegmentHeaderBytes, options_.segment_bytes}, outcome);
      found.used_bytes = std::max(found.used_bytes, outcome.used_bytes);
      for (const RecordHeader& header : outcome.bad) damaged.push_back(RecordOfHeader(header));
      for (const uint64_t offset : outcome.damaged) {
        damaged.push_back(BlockAt(number, segment.sequence, offset));
      }
      for (ColdRecord& record : outcome.live) {
        if (!found.part.has_value()) found.part = record.place.part;
        // Its segment has another stream's records: nobody wrote that.
        (*found.part == record.place.part ? all : damaged).push_back(std::move(record));
      }
    }
    out.segments.push_back(found);
  }
  return all;
}

/// Of several records of one part of one block the newest stays; the others are marked dead, and so are tails
/// that have no base.
Status CxlStore::MergeCopies(std::vector<ColdRecord> found, ColdRecovery& out) {
  // Bases first: they decide which tails count.
  std::stable_partition(found.begin(), found.end(),
                        [](const ColdRecord& record) { return record.place.part == ColdPart::kBase; });
  std::unordered_map<std::string, size_t> by_key;
  by_key.reserve(found.size());
  std::vector<ColdRecord> kept, superseded;
  for (ColdRecord& record : found) {
    const auto base =
        by_key.find(EncodeIndexKey(record.identity.name_space, record.identity.key, ColdPart::kBase));
    const auto [at, is_new] = by_key.emplace(EncodeIndexKey(record), kept.size());
    if (is_new) {
      kept.push_back(std::move(record));
    } else if (Supersedes(record, kept[at->second], base == by_key.end() ? nullptr : &kept[base->second])) {
      superseded.push_back(std::exchange(kept[at->second], std::move(record)));
    } else {
      superseded.push_back(std::move(record));
    }
  }
  for (ColdRecord& orphan : JoinTails(std::move(kept), out)) superseded.push_back(std::move(orphan));
  return MarkDead(superseded);
}

}  // namespace kvtier
