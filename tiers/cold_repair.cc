#include <algorithm>
#include <filesystem>
#include <set>

#include "tiers/cold_check.h"
#include "tiers/cold_folder.h"
#include "tiers/cold_index.h"
#include "tiers/cold_records.h"
#include "tiers/cold_recovery.h"
#include "tiers/cold_scan.h"
#include "tiers/cold_tail.h"

namespace kvtier {

namespace {

/// A capacity in which segments of these numbers fit: repair removes none.
uint64_t CapacityFor(uint64_t segments, uint64_t segment_bytes) {
  uint64_t capacity = (segments + 1) * segment_bytes;
  while (ColdSegmentLimit(capacity, segment_bytes) < segments) capacity += segment_bytes;
  return capacity;
}

Result<ColdStoreOptions> OptionsFor(const std::string& path) {
  KVTIER_ASSIGN(const ColdFormat format, ReadColdFormat(path));
  const Result<std::vector<std::string>> names = ListFolder(path + "/segments");
  if (!names.ok() && names.status().code() != Code::kNotFound) return names.status();
  uint32_t segments = 1;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const Result<uint32_t> number = ParseSegmentName(name);
    if (number.ok()) segments = std::max(segments, *number + 1);
  }
  return ColdStoreOptions{.tier = {},
                          .path = path,
                          .capacity_bytes = CapacityFor(segments, format.segment_bytes),
                          .segment_bytes = format.segment_bytes};
}

class Repair {
 public:
  Repair(const ColdStoreOptions& options, const ColdFolder& folder, BlockIo& io)
      : options_(options),
        folder_(folder),
        io_(io),
        index_options_{.folder = folder.index(),
                       .reserve_bytes = ColdIndexReserveBytes(options.capacity_bytes)} {}

  Result<ColdRepair> Run() {
    // First as a daemon would start: what the index knows of damaged segment headers is used.
    bool rebuilt = false;
    KVTIER_ASSIGN(index_, OpenOrRebuildIndex(index_options_, rebuilt));
    ColdSegments known(SegmentOptions());
    KVTIER_ASSIGN(const ColdRecovery first, RecoverRecords(known, index_, index_options_, io_));
    // Then from the segments alone.
    index_.reset();
    KVTIER_TRY(MoveIndexAside(index_options_.folder));
    KVTIER_ASSIGN(index_, ColdIndex::Open(index_options_));
    ColdSegments segments(SegmentOptions());
    KVTIER_ASSIGN(ColdRecovery second, RecoverRecords(segments, index_, index_options_, io_));
    out_.headers_lost = second.damaged_headers;
    out_.headers_repaired = first.damaged_headers - second.damaged_headers;
    KVTIER_TRY(BuryDamaged(segments, second.segments));
    KVTIER_TRY(EmptyLost(segments, first.segments, second.segments));
    KVTIER_ASSIGN(out_.removed_files, RemoveDamagedModels(folder_.models()));
    KVTIER_TRY(BuryOrphans(segments, second.blocks));
    out_.blocks = second.blocks.size();
    KVTIER_TRY(RemoveLeftovers());
    KVTIER_TRY(index_->MarkClean());
    return out_;
  }

 private:
  ColdSegments::Options SegmentOptions() const {
    return {.folder = folder_.segments(),
            .uuid = folder_.uuid,
            .segment_bytes = options_.segment_bytes,
            .segment_limit = ColdSegmentLimit(options_.capacity_bytes, options_.segment_bytes),
            .direct_io = folder_.direct_io};
  }

  Status BuryDamaged(ColdSegments& segments, std::span<const RecoveredSegment> found) {
    std::vector<ColdRecord> damaged;
    ColdScanner scanner(folder_.uuid);
    for (const RecoveredSegment& segment : found) {
      if (segment.sequence == 0) continue;
      KVTIER_ASSIGN(const ColdSegments::FilePtr file, segments.Open(segment.number, segment.sequence));
      FileSegmentBytes bytes(*file, io_);
      ColdScanner::Outcome outcome;
      scanner.Scan(
          bytes,
          {.number = segment.number, .sequence = segment.sequence, .file_bytes = options_.segment_bytes},
          {kColdSegmentHeaderBytes, segment.used_bytes}, outcome);
      for (const RecordHeader& bad : outcome.bad) damaged.push_back(RecordOfHeader(bad));
    }
    out_.marked_dead += damaged.size();
    return MarkDead(damaged, segments, io_);
  }

  /// Nobody knows in which use a segment without a sound header is: as a daemon would, a new one is begun.
  /// Not where the device failed, now or since the first look: it may give the header another time.
  Status EmptyLost(ColdSegments& segments, std::span<const RecoveredSegment> before,
                   std::span<const RecoveredSegment> found) {
    uint64_t sequence = 0;
    std::set<uint32_t> keep;
    for (const RecoveredSegment& segment : found) sequence = std::max(sequence, segment.sequence);
    for (const RecoveredSegment& segment : before) {
      sequence = std::max(sequence, segment.sequence);
      if (segment.unread || segment.sequence != 0) keep.insert(segment.number);
    }
    for (const RecoveredSegment& segment : found) {
      if (segment.sequence != 0 || segment.unread || keep.contains(segment.number)) continue;
      KVTIER_TRY(segments.Recycle(segment.number, ++sequence, io_));
    }
    return Status::Ok();
  }

  /// Blocks of models that have no file. One that only could not be read now may be read another time.
  Status BuryOrphans(ColdSegments& segments, std::vector<RecoveredBlock>& blocks) {
    KVTIER_ASSIGN(const std::vector<std::string> files, ListFolder(folder_.models()));
    const std::set<std::string> names(files.begin(), files.end());
    const auto orphans =
        std::stable_partition(blocks.begin(), blocks.end(), [&](const RecoveredBlock& block) {
          return names.contains(ModelFileName(block.identity.name_space));
        });
    std::vector<ColdRecord> dead;
    for (const RecoveredBlock& block : std::span(orphans, blocks.end())) {
      dead.push_back(block);
      for (const Place& tail : {block.k_tail.place, block.v_tail.place}) {
        if (tail.bytes > 0) dead.push_back(TailRecord(block, tail));
      }
    }
    blocks.erase(orphans, blocks.end());
    out_.marked_dead += dead.size();
    KVTIER_TRY(MarkDead(dead, segments, io_));
    return index_->Erase(dead);
  }

  Status RemoveLeftovers() {
    for (const std::string& folder : {folder_.path, folder_.segments(), folder_.models()}) {
      KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
      for (const std::string& name : names) {
        if (!IsLeftover(name)) continue;
        std::error_code error;
        std::filesystem::remove_all(folder + "/" + name, error);
        if (error) return StatusFromErrno(error.value(), "remove " + folder + "/" + name);
        ++out_.removed_files;
      }
    }
    return Status::Ok();
  }

  const ColdStoreOptions options_;
  const ColdFolder& folder_;
  BlockIo& io_;
  const ColdIndex::Options index_options_;
  std::unique_ptr<ColdIndex> index_;
  ColdRepair out_;
};

}  // namespace

Result<ColdRepair> RepairColdStore(const std::string& path) {
  const Status format = RestoreColdFormat(path);
  if (!format.ok()) return format.WithContext("cold store " + path);
  Result<ColdStoreOptions> options = OptionsFor(path);
  if (!options.ok()) return options.status().WithContext("cold store " + path);
  KVTIER_ASSIGN(const std::unique_ptr<BlockIo> io, MakeBlockIo(BlockIoKind::kSync));
  KVTIER_ASSIGN(const ColdFolder folder, OpenColdFolder(*options, *io));
  Result<ColdRepair> repaired = Repair(*options, folder, *io).Run();
  if (!repaired.ok()) return repaired.status().WithContext("cold store " + path);
  return repaired;
}

}  // namespace kvtier
