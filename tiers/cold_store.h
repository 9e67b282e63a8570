#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tiers/medium.h"

namespace kvtier {

inline constexpr uint64_t kColdSegmentHeaderBytes = 4096;  ///< the first record of a segment starts here
inline constexpr uint64_t kColdRecordHeaderBytes = 256;
inline constexpr uint32_t kColdMaxSegments = 1 << 16;

/// Place::bytes of a record that holds an image of `image_bytes`.
constexpr uint64_t ColdRecordBytes(uint64_t image_bytes) {
  return AlignUp(kColdRecordHeaderBytes + image_bytes, kSlotAlign);
}

/// Part of the capacity that is left to index, models and lock: segments get the rest.
constexpr uint64_t ColdIndexReserveBytes(uint64_t capacity_bytes) {
  return std::min(capacity_bytes / 16, (uint64_t{16} << 20) + capacity_bytes / 128);
}

/// Models that a store keeps, whatever its capacity.
inline constexpr uint32_t kMaxColdModels = 4096;
inline constexpr uint64_t kColdModelFileBytes = 4096;  ///< a block of the disk each
/// Models that a store of this capacity keeps: their files take a quarter of the reserve at most.
constexpr uint32_t ColdModelLimit(uint64_t capacity_bytes) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(ColdIndexReserveBytes(capacity_bytes) / 4 / kColdModelFileBytes, kMaxColdModels));
}

/// What the index collects in memory before it writes a file of it.
constexpr uint64_t ColdIndexBufferBytes(uint64_t reserve_bytes) {
  return std::clamp(reserve_bytes / 64, uint64_t{64} << 10, uint64_t{4} << 20);
}

/// Segments that fit; their numbers are 0 .. this - 1. A file is made when its first record is written.
constexpr uint32_t ColdSegmentLimit(uint64_t capacity_bytes, uint64_t segment_bytes) {
  return static_cast<uint32_t>(std::min<uint64_t>(
      (capacity_bytes - ColdIndexReserveBytes(capacity_bytes)) / segment_bytes, kColdMaxSegments));
}

/// Records, live or dead, that a segment takes: so many that the index, which has an entry for each, stays in
/// the part of the reserve that models leave, with its logs and what it writes anew.
constexpr uint32_t ColdSegmentRecords(uint64_t capacity_bytes, uint64_t segment_bytes) {
  constexpr uint64_t kEntryBytes = 640;  // 250 of them the entry; it stands twice while files are merged
  constexpr uint64_t kLogs = 8;          // buffers' worth of logs and of files not yet merged
  const uint64_t reserve = ColdIndexReserveBytes(capacity_bytes);
  const uint64_t taken =
      ColdModelLimit(capacity_bytes) * kColdModelFileBytes + kLogs * ColdIndexBufferBytes(reserve);
  const uint64_t records = reserve > taken ? (reserve - taken) / kEntryBytes : 0;
  const uint64_t segments = std::max(ColdSegmentLimit(capacity_bytes, segment_bytes), 1u);
  return static_cast<uint32_t>(std::clamp<uint64_t>(records / segments, 1, UINT32_MAX));
}

struct ColdStoreOptions {
  TierId tier;
  std::string path;             ///< an existing folder; the store keeps its files in it
  uint64_t capacity_bytes = 0;  ///< cap on segment files in allocated bytes (index included by reserve)
  uint64_t segment_bytes = uint64_t{64} << 20;  ///< multiple of 4096
  bool allow_direct_io = true;
};

/// A record of a block, or of planes that complete it (place.part says which): what the index knows of it.
struct ColdRecord {
  BlockIdentity identity;
  RecordMeta meta;
  Place place;
  CodecId codec = CodecId::kNone;
  uint64_t image_bytes = 0;  ///< of a tail: its payload
  float k_error = 0, v_error = 0;
  /// Names the very encoding of the base (BindingOf): a tail counts only beside the base of its own.
  uint32_t binding = 0;
};
using ColdCommit = ColdRecord;  ///< to make durable: FinishWrite has returned OK for it

/// Planes found beside a block at start.
struct RecoveredTail {
  Place place;      ///< bytes is 0: none
  float error = 0;  ///< of K or V with it
};
/// A block found on disk at start: its base and the planes that belong to it.
struct RecoveredBlock : ColdRecord {
  RecoveredTail k_tail, v_tail;
};

/// A segment file found on disk at start, for the engine's SegmentAllocator.
struct RecoveredSegment {
  uint32_t number = 0;
  uint64_t sequence = 0;
  /// Append position: everything below it is taken, live or not. A segment whose header is damaged counts as
  /// full, without blocks and with sequence 0: recycle it.
  uint64_t used_bytes = 0;
  bool unread = false;                ///< the header was not damaged: the device did not give it
  bool unopened = false;              ///< nor the file: it cannot be used at all
  std::optional<ColdPart> part = {};  ///< of its records; none: it has none
};

/// Opaque to tiers: the namespace's fields as the daemon serialized them.
struct ModelRecord {
  NamespaceDigest name_space;
  std::string fields;
};

struct ColdRecovery {
  std::vector<ModelRecord> models;
  std::vector<RecoveredBlock> blocks;
  std::vector<RecoveredSegment> segments;
  /// Index entries, records and models that did not check out, and blocks of models that are not there.
  uint64_t dropped_records = 0;
  uint64_t unknown_model_blocks = 0;  ///< of dropped_records: sound, but their model is missing or damaged
  /// Of dropped_records: stood in segments above the limit of a capacity that was larger once.
  uint64_t beyond_capacity_records = 0;
  uint64_t foreign_files = 0;    ///< segments of another store, renamed
  uint64_t unopened_files = 0;   ///< segments that could not be opened: left alone until the next start
  uint64_t removed_models = 0;   ///< files of models without a block, to make room for others
  bool disk_full = false;        ///< no room for the self-test or the index: writes fail until there is
  uint64_t damaged_headers = 0;  ///< of segments; repaired from the index or, without it, lost
  bool index_rebuilt = false;    ///< it was damaged and is moved aside
  uint64_t scanned_records = 0;  ///< records found by the scan, not in the index
  uint64_t orphan_tails = 0;     ///< of dropped_records: the base that they complete is not there
  uint64_t least_sequence = 1;   ///< for new uses of segments
};

/// Append-only segment files of self-describing records, with an index in RocksDB (tiers/FORMAT.md).
/// Owns: the folder's lock file, segment descriptors, the RocksDB handle.
/// Threads: Medium methods on any worker; the others on the committer thread (Recover before it starts).
class ColdStore : public Medium {
 public:
  /// Takes the lock, checks the format version, tests that the folder can be written and read back (O_DIRECT
  /// first, then buffered). Errors, each a clear line: kFailedPrecondition (another daemon holds it, foreign
  /// or newer format), kPermissionDenied, kResourceExhausted (no space), kUnavailable (I/O).
  static Result<std::unique_ptr<ColdStore>> Make(ColdStoreOptions options);

  /// Reads models and blocks back: from the index, and after anything but a clean stop by scanning what the
  /// index does not cover. Once, before anything else. A lost or damaged index is moved aside and rebuilt.
  virtual Result<ColdRecovery> Recover() = 0;
  virtual Status PutModel(const ModelRecord& model) = 0;
  /// Syncs the data of every segment that the items touch, then writes one index batch. Tails are committed
  /// before their base. After OK all items
  /// are durable; after an error none is. Do not retry: a failed sync may have lost the data.
  virtual Status Commit(std::span<const ColdCommit> items, BlockIo& io) = 0;
  /// Forgets blocks (evicted, removed, quarantined). Their records are marked dead and that is synced before
  /// the index forgets them, so that no scan brings them back. To be called for every place that was written
  /// and is given up, also for a superseded copy (the index entry of the newer one stays) and for a write
  /// that was never committed.
  virtual Status Erase(std::span<const ColdCommit> items, BlockIo& io) = 0;
  /// Forgets a whole segment, also what was not erased one by one, and prepares it for reuse under
  /// `new_sequence`.
  virtual Status RecycleSegment(uint32_t segment, uint64_t new_sequence, BlockIo& io) = 0;
  virtual bool direct_io() const = 0;
  /// Whether what was committed survives a power cut.
  virtual bool persistent() const { return true; }
  /// Whether the space of a segment is reserved when it is made.
  virtual bool preallocates() const { return true; }
  /// Of the capacity: segments that there are, files set aside, the reserve.
  virtual uint64_t allocated_bytes() const = 0;
  /// Written beside records since Make: segment headers, marks of dead records, index batches as they go to
  /// its log. 0 where the medium does not wear.
  virtual uint64_t metadata_bytes_written() const { return 0; }
};

}  // namespace kvtier
