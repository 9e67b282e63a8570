#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tiers/medium.h"

namespace kvtier {

struct ColdStoreOptions {
  TierId tier;
  std::string path;                             ///< an existing folder; the store keeps its files in it
  uint64_t capacity_bytes = 0;                  ///< cap on segment files in allocated bytes (index included by reserve)
  uint64_t segment_bytes = uint64_t{64} << 20;  ///< multiple of 4096
  bool allow_direct_io = true;
};

/// A block found on disk at start.
struct RecoveredBlock {
  BlockIdentity identity;
  RecordMeta meta;
  Place place;
  CodecId codec = CodecId::kNone;
  uint64_t image_bytes = 0;
  float k_error = 0, v_error = 0;
};

/// A segment file found on disk at start, for the engine's SegmentAllocator.
struct RecoveredSegment {
  uint32_t number = 0;
  uint64_t sequence = 0;
  uint64_t used_bytes = 0;  ///< append position: everything below it is taken, live or not
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
  uint64_t dropped_records = 0;  ///< index entries or records that did not check out
};

/// One record to make durable: FinishWrite has returned OK for it.
struct ColdCommit {
  BlockIdentity identity;
  RecordMeta meta;
  Place place;
  CodecId codec = CodecId::kNone;
  uint64_t image_bytes = 0;
  float k_error = 0, v_error = 0;
};

/// Append-only segment files of self-describing records, with an index in RocksDB (tiers/FORMAT.md).
/// Owns: the folder's lock file, segment descriptors, the RocksDB handle.
/// Threads: Medium methods on any worker; the others on the committer thread (Recover before it starts).
class ColdStore : public Medium {
 public:
  /// Takes the lock, checks the format version, tests that the folder can be written and read back (O_DIRECT first, then
  /// buffered). Errors, each a clear line: kFailedPrecondition (another daemon holds it, foreign or newer format),
  /// kPermissionDenied, kResourceExhausted (no space), kUnavailable (I/O).
  static Result<std::unique_ptr<ColdStore>> Make(ColdStoreOptions options);

  /// Reads models and blocks back: from the index, and by scanning segments where the index is missing or may lag behind.
  virtual Result<ColdRecovery> Recover() = 0;
  virtual Status PutModel(const ModelRecord& model) = 0;
  /// Syncs the data of every segment that the items touch, then writes one index batch. After OK all items are durable.
  virtual Status Commit(std::span<const ColdCommit> items, BlockIo& io) = 0;
  /// Forgets blocks (evicted, removed, quarantined). A record that a scan could find again is marked dead first.
  virtual Status Erase(std::span<const ColdCommit> items, BlockIo& io) = 0;
  /// Forgets a whole segment and prepares it for reuse under `new_sequence`.
  virtual Status RecycleSegment(uint32_t segment, uint64_t new_sequence, BlockIo& io) = 0;
  virtual bool direct_io() const = 0;
  virtual uint64_t allocated_bytes() const = 0;
};

}  // namespace kvtier
