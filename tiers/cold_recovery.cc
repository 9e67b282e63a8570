#include "tiers/cold_recovery.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>
#include <unordered_map>

#include "tiers/cold_records.h"
#include "tiers/cold_scan.h"

namespace kvtier {

namespace {

constexpr size_t kIndexBatch = 1024;

bool IsBase(const ColdRecord& record) {
  return record.place.part == ColdPart::kBase;
}

std::string BaseKeyOf(const ColdRecord& record) {
  return EncodeIndexKey(record.identity.name_space, record.identity.key, ColdPart::kBase);
}

bool OlderPlace(const ColdRecord& a, const ColdRecord& b) {
  return std::tie(a.place.epoch, a.place.offset) < std::tie(b.place.epoch, b.place.offset);
}

/// One start's work, step by step; what each step finds stands in the members.
class Recovery {
 public:
  Recovery(ColdSegments& segments, std::unique_ptr<ColdIndex>& index, const ColdIndex::Options& index_options,
           BlockIo& io)
      : segments_(segments), index_(index), index_options_(index_options), io_(io) {}

  Result<ColdRecovery> Run() {
    KVTIER_ASSIGN(const std::vector<ColdSegments::Found> found, segments_.Load(io_));
    for (const ColdSegments::Found& segment : found) found_.emplace(segment.number, segment);
    out_.foreign_files = segments_.foreign();
    out_.unopened_files = segments_.unopened();
    out_.disk_full = index_->without_room();
    KVTIER_TRY(LoadIndex());
    AdoptDamagedSegments();
    KVTIER_TRY(DropEntriesWithoutRecord());
    ListSegments();
    if (must_scan_) KVTIER_TRY(ScanGaps());
    KVTIER_TRY(Merge());
    Drop(JoinTails(std::move(entries_), out_)).IgnoreBecause("the next start drops them again");
    return std::move(out_);
  }

 private:
  Status LoadIndex() {
    must_scan_ = !index_->was_clean();
    const auto keep = [&](ColdRecord&& record) { entries_.push_back(std::move(record)); };
    Result<uint64_t> bad_entries = index_->Load(keep);
    if (bad_entries.status().code() == Code::kDataLoss) {
      entries_.clear();
      must_scan_ = true;
      out_.index_rebuilt = true;
      index_.reset();
      KVTIER_TRY(MoveIndexAside(index_options_.folder));
      KVTIER_ASSIGN(index_, ColdIndex::Open(index_options_));
      return Status::Ok();
    }
    if (!bad_entries.ok()) return bad_entries.status();
    must_scan_ |= *bad_entries > 0;
    out_.dropped_records += *bad_entries;
    return Status::Ok();
  }

  /// A damaged header costs nothing when the index still knows the segment's sequence.
  void AdoptDamagedSegments() {
    for (auto& [number, segment] : found_) {
      if (segment.sequence != 0 || segment.unopened) continue;
      ++out_.damaged_headers;
      uint64_t sequence = 0;
      for (const ColdRecord& entry : entries_) {
        if (entry.place.container == number) sequence = std::max(sequence, entry.place.epoch);
      }
      if (sequence != 0 && segments_.RepairHeader(number, sequence, io_).ok()) segment.sequence = sequence;
    }
  }

  bool CanStand(const ColdRecord& entry) const {
    const auto found = found_.find(entry.place.container);
    if (found == found_.end() || found->second.sequence != entry.place.epoch) return false;
    const Place& place = entry.place;
    return place.offset >= kColdSegmentHeaderBytes && place.offset % kColdBlockBytes == 0 &&
           place.bytes % kColdBlockBytes == 0 && place.bytes <= found->second.file_bytes &&
           place.offset <= found->second.file_bytes - place.bytes &&
           ColdRecordBytes(entry.image_bytes) <= place.bytes;
  }

  Status DropEntriesWithoutRecord() {
    std::sort(entries_.begin(), entries_.end(), [](const ColdRecord& a, const ColdRecord& b) {
      return std::tie(a.place.container, a.place.offset) < std::tie(b.place.container, b.place.offset);
    });
    std::vector<ColdRecord> dropped;
    size_t kept = 0, waiting = 0;
    for (ColdRecord& entry : entries_) {
      const auto segment = found_.find(entry.place.container);
      if (segment != found_.end() && segment->second.unopened) {
        ++waiting;  // the next start may find its file
        continue;
      }
      if (entry.place.container >= segments_.options().segment_limit) ++out_.beyond_capacity_records;
      const Place* previous = kept == 0 ? nullptr : &entries_[kept - 1].place;
      const bool same_segment = previous != nullptr && previous->container == entry.place.container;
      const bool overlaps = same_segment && entry.place.offset < previous->offset + previous->bytes;
      const bool other_stream = same_segment && entry.place.part != previous->part;
      if (!CanStand(entry) || overlaps || other_stream) {
        dropped.push_back(entry);
      } else {
        std::swap(entries_[kept++], entry);
      }
    }
    entries_.resize(kept);
    out_.dropped_records += dropped.size() + waiting;
    return InBatches(dropped,
                     [&](std::span<const ColdRecord> some) { return UnlessFull(index_->Erase(some)); });
  }

  /// On a full disk the index stays behind, unclean: the next start does the same again.
  static Status UnlessFull(const Status& status) {
    return status.code() == Code::kResourceExhausted ? Status::Ok() : status;
  }

  /// Fills out_.segments from the headers and the entries, which are in order of place.
  void ListSegments() {
    const uint64_t segment_bytes = segments_.options().segment_bytes;
    for (const auto& [number, segment] : found_) {
      out_.segments.push_back({.number = number,
                               .sequence = segment.sequence,
                               .used_bytes = segment.sequence == 0 ? segment_bytes : kColdSegmentHeaderBytes,
                               .unread = segment.unread,
                               .unopened = segment.unopened,
                               .part = std::nullopt});
    }
    std::sort(out_.segments.begin(), out_.segments.end(),
              [](const RecoveredSegment& a, const RecoveredSegment& b) { return a.number < b.number; });
    auto entry = entries_.begin();
    for (RecoveredSegment& segment : out_.segments) {
      for (; entry != entries_.end() && entry->place.container == segment.number; ++entry) {
        segment.used_bytes = std::max(segment.used_bytes, entry->place.offset + entry->place.bytes);
        segment.part = entry->place.part;
      }
    }
  }

  /// Scans what the entries leave uncovered of each segment.
  Status ScanGaps() {
    ColdScanner scanner(segments_.options().uuid);
    auto entry = entries_.cbegin();
    for (RecoveredSegment& segment : out_.segments) {
      if (segment.sequence == 0) continue;
      KVTIER_ASSIGN(const ColdSegments::FilePtr file, segments_.Open(segment.number, segment.sequence));
      const ColdSegments::Found& found = found_.at(segment.number);
      FileSegmentBytes bytes(*file, io_);
      ColdScanner::Outcome outcome;
      uint64_t covered = kColdSegmentHeaderBytes;
      for (; entry != entries_.cend() && entry->place.container == segment.number; ++entry) {
        scanner.Scan(bytes, found, {covered, entry->place.offset}, outcome);
        covered = entry->place.offset + entry->place.bytes;
      }
      scanner.Scan(bytes, found, {covered, segments_.options().segment_bytes}, outcome);
      segment.used_bytes = std::max(segment.used_bytes, outcome.used_bytes);
      // What could not be read may be taken.
      if (outcome.unread_bytes > 0) segment.used_bytes = segments_.options().segment_bytes;
      out_.dropped_records += outcome.bad.size();
      for (ColdRecord& record : outcome.live) {
        if (!segment.part.has_value()) segment.part = record.place.part;
        if (*segment.part == record.place.part) {
          scanned_.push_back(std::move(record));
        } else {
          ++out_.dropped_records;  // its segment has another stream's records: nobody wrote that
        }
      }
    }
    return Status::Ok();
  }

  /// Of several records of one part of one block the newest stays; the others are marked dead. A newer tail
  /// never takes the place of one that belongs to the base that stays.
  Status Merge() {
    if (scanned_.empty()) return Status::Ok();
    std::unordered_map<std::string, size_t> by_key;
    by_key.reserve(entries_.size() + scanned_.size());
    for (size_t i = 0; i < entries_.size(); ++i) by_key.emplace(EncodeIndexKey(entries_[i]), i);
    // Bases first: they decide which tails count.
    std::stable_partition(scanned_.begin(), scanned_.end(),
                          [](const ColdRecord& record) { return IsBase(record); });
    std::vector<ColdRecord> superseded, added;
    for (ColdRecord& record : scanned_) {
      const auto [at, is_new] = by_key.emplace(EncodeIndexKey(record), entries_.size());
      if (is_new) {
        entries_.push_back(record);
      } else if (Supersedes(record, entries_[at->second], BaseOf(record, by_key))) {
        superseded.push_back(std::exchange(entries_[at->second], record));
      } else {
        superseded.push_back(std::move(record));
        continue;
      }
      added.push_back(std::move(record));
      ++out_.scanned_records;
    }
    // They may stand in the page cache only: synced before the index says that they are durable.
    KVTIER_TRY(InBatches(added, [&](std::span<const ColdRecord> some) -> Status {
      KVTIER_TRY(SyncSegmentsOf(some, segments_, io_));
      return UnlessFull(index_->Put(some));
    }));
    return Drop(superseded);
  }

  /// Marks the records dead and takes them out of the index.
  Status Drop(std::span<const ColdRecord> records) {
    return InBatches(records, [&](std::span<const ColdRecord> some) -> Status {
      KVTIER_TRY(MarkDead(some, segments_, io_));
      return UnlessFull(index_->Erase(some));
    });
  }

  const ColdRecord* BaseOf(const ColdRecord& record,
                           const std::unordered_map<std::string, size_t>& by_key) const {
    const auto base = by_key.find(BaseKeyOf(record));
    return base == by_key.end() ? nullptr : &entries_[base->second];
  }

  template <typename Step>
  static Status InBatches(std::span<const ColdRecord> records, Step step) {
    while (!records.empty()) {
      const auto some = records.first(std::min(records.size(), kIndexBatch));
      KVTIER_TRY(step(some));
      records = records.subspan(some.size());
    }
    return Status::Ok();
  }

  ColdSegments& segments_;
  std::unique_ptr<ColdIndex>& index_;
  const ColdIndex::Options& index_options_;
  BlockIo& io_;

  std::unordered_map<uint32_t, ColdSegments::Found> found_;
  std::vector<ColdRecord> entries_;  ///< from the index; in order of place until Merge
  std::vector<ColdRecord> scanned_;
  bool must_scan_ = false;
  ColdRecovery out_;
};

}  // namespace

bool Supersedes(const ColdRecord& record, const ColdRecord& other, const ColdRecord* base) {
  if (!IsBase(record) && base != nullptr && record.binding != other.binding) {
    return record.binding == base->binding;
  }
  return OlderPlace(other, record);
}

std::vector<ColdRecord> JoinTails(std::vector<ColdRecord> records, ColdRecovery& out) {
  for (const ColdRecord& record : records) {
    if (IsBase(record)) out.blocks.push_back(RecoveredBlock{record, {}, {}});
  }
  std::vector<ColdRecord> orphans;
  if (out.blocks.size() == records.size()) return orphans;
  std::unordered_map<std::string, RecoveredBlock*> by_key;
  by_key.reserve(out.blocks.size());
  for (RecoveredBlock& block : out.blocks) by_key.emplace(BaseKeyOf(block), &block);
  for (ColdRecord& tail : records) {
    if (IsBase(tail)) continue;
    const auto base = by_key.find(BaseKeyOf(tail));
    const bool fits = base != by_key.end() && base->second->codec == CodecId::kKv2p &&
                      base->second->binding == tail.binding && base->second->identity == tail.identity;
    if (!fits) {
      ++out.orphan_tails;
      ++out.dropped_records;
      orphans.push_back(std::move(tail));
    } else if (tail.place.part == ColdPart::kKTail) {
      base->second->k_tail = {.place = tail.place, .error = tail.k_error};
    } else {
      base->second->v_tail = {.place = tail.place, .error = tail.v_error};
    }
  }
  return orphans;
}

Status MoveIndexAside(const std::string& folder) {
  const std::string aside = folder + ".broken";
  std::error_code error;
  std::filesystem::remove_all(aside, error);
  if (!error) std::filesystem::rename(folder, aside, error);
  if (error) return StatusFromErrno(error.value(), "move " + folder + " aside");
  return Status::Ok();
}

Result<std::unique_ptr<ColdIndex>> OpenOrRebuildIndex(const ColdIndex::Options& options, bool& rebuilt) {
  Result<std::unique_ptr<ColdIndex>> index = ColdIndex::Open(options);
  if (index.ok() || index.status().code() == Code::kResourceExhausted) return index;
  KVTIER_TRY(MoveIndexAside(options.folder));
  rebuilt = true;
  return ColdIndex::Open(options);
}

void KeepBlocksOfKnownModels(ColdRecovery& recovery) {
  std::set<decltype(NamespaceDigest::bytes)> known;
  for (const ModelRecord& model : recovery.models) known.insert(model.name_space.bytes);
  recovery.unknown_model_blocks = std::erase_if(recovery.blocks, [&](const RecoveredBlock& block) {
    return !known.contains(block.identity.name_space.bytes);
  });
  recovery.dropped_records += recovery.unknown_model_blocks;
}

Result<ColdRecovery> RecoverRecords(ColdSegments& segments, std::unique_ptr<ColdIndex>& index,
                                    const ColdIndex::Options& index_options, BlockIo& io) {
  return Recovery(segments, index, index_options, io).Run();
}

}  // namespace kvtier
