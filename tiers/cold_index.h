#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tiers/cold_store.h"

namespace rocksdb {
class DB;
class WriteBatch;
}  // namespace rocksdb

namespace kvtier {

/// Where each block of a cold store is: RocksDB behind kvtier's types, small in memory, unsynced but for its
/// clean mark. Owns: the database in its folder. Threads: single-owner. Errors: kDataLoss (damaged: move it
/// aside and scan), kResourceExhausted (disk full), kUnavailable (I/O). After a failed write the next
/// call opens the database anew.
class ColdIndex {
 public:
  struct Options {
    std::string folder;
    uint64_t reserve_bytes = 0;  ///< disk space that it should keep to; sizes its buffers
  };
  /// Creates the database where there is none, and takes the clean mark off it (synced). One that is there
  /// opens on a full disk, too: to be read, until a write finds room.
  static Result<std::unique_ptr<ColdIndex>> Open(const Options& options);
  /// Changes nothing in the folder. Only Load and was_clean work. Errors: also kDataLoss where there is none.
  static Result<std::unique_ptr<ColdIndex>> OpenReadOnly(const std::string& folder);
  ~ColdIndex();

  /// Whether the last user ended by MarkClean: then the index covers every committed record.
  bool was_clean() const { return was_clean_; }

  /// Calls `visit` for every sound entry. Returns how many did not check out; those are deleted.
  Result<uint64_t> Load(const std::function<void(ColdRecord&&)>& visit);
  /// One batch; all or nothing.
  Status Put(std::span<const ColdRecord> records);
  /// Deletes the entries that still point at the records' places.
  Status Erase(std::span<const ColdRecord> records);
  /// Deletes every entry that points into `segment`.
  Status EraseSegment(uint32_t segment);
  /// Syncs everything and leaves the mark. Refused after a write that failed.
  Status MarkClean();
  /// Whether Open found no room to write.
  bool without_room() const { return without_room_; }
  /// Of batches, as they go to the log.
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  ColdIndex(Options options, bool read_only);
  Status EnsureOpen();
  Status EnsureWritable();
  Status OpenOnFullDisk();
  bool opened_to_read() const { return read_only_ || without_room_; }
  Status OpenDatabase();
  void Close();
  Status Write(rocksdb::WriteBatch& batch, std::string_view what);
  Status TakeCleanMark();

  const Options options_;
  const bool read_only_;
  std::unique_ptr<rocksdb::DB> db_;  ///< null after a failed write, until the next call opens it again
  bool was_clean_ = false;
  bool without_room_ = false;  ///< opened on a full disk
  bool write_failed_ = false;  ///< since Open
  uint64_t written_bytes_ = 0;
};

}  // namespace kvtier
