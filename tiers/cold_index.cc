#include "tiers/cold_index.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <exception>

#include "tiers/cold_format.h"

namespace kvtier {

namespace {

/// So large that there are few of them, so small that a merge of some fits into the reserve.
constexpr uint64_t kMaxFileBytes = uint64_t{4} << 20;
constexpr uint64_t kBlockCacheBytes = uint64_t{8} << 20;
constexpr int kMaxOpenFiles = 64;
constexpr std::string_view kCleanKey = "c";

rocksdb::Slice ToSlice(std::string_view text) {
  return {text.data(), text.size()};
}
std::string_view ToView(const rocksdb::Slice& slice) {
  return {slice.data(), slice.size()};
}

Status FromRocks(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return Status::Ok();
  Code code = Code::kUnavailable;
  if (status.IsCorruption()) code = Code::kDataLoss;
  if (status.IsNoSpace()) code = Code::kResourceExhausted;
  return Status(code, std::string(what) + ": " + status.ToString());
}

/// Runs `call`, which returns a Status; an exception out of the library becomes one too.
template <typename Call>
Status Guarded(std::string_view what, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return Status(Code::kInternal, std::string(what) + ": " + error.what());
  }
}

/// RocksDB's own log would be a file on the disk that fails, and a library built with assertions, as Debian's
/// is, aborts at the second line that it cannot write. What matters comes back as a status.
class SilentLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Options MakeOptions(uint64_t reserve_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  table.cache_index_and_filter_blocks = true;  // inside the cache's bound

  rocksdb::Options options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;  // digests do not compress
  options.write_buffer_size = ColdIndexBufferBytes(reserve_bytes);
  options.max_write_buffer_number = 2;
  options.max_total_wal_size = 2 * options.write_buffer_size;
  options.target_file_size_base = kMaxFileBytes;
  options.level_compaction_dynamic_level_bytes = true;  // of what is superseded little stays
  // Writers wait rather than let files that are not yet merged outgrow the reserve (ColdSegmentRecords).
  options.level0_file_num_compaction_trigger = 2;
  options.level0_slowdown_writes_trigger = 3;
  options.level0_stop_writes_trigger = 4;
  options.max_open_files = kMaxOpenFiles;
  options.max_background_jobs = 2;
  options.allow_fallocate = false;
  options.paranoid_checks = true;
  options.info_log = std::make_shared<SilentLog>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

/// 's', segment, offset (both big endian, so that a segment's entries are neighbours): the block key that
/// stood there.
std::string PlaceKey(uint32_t segment, uint64_t offset) {
  std::string key(1, 's');
  for (int shift = 24; shift >= 0; shift -= 8) key.push_back(static_cast<char>(segment >> shift));
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(offset >> shift));
  return key;
}

}  // namespace

ColdIndex::ColdIndex(Options options, bool read_only) : options_(std::move(options)), read_only_(read_only) {}

ColdIndex::~ColdIndex() {
  Close();
}

Result<std::unique_ptr<ColdIndex>> ColdIndex::Open(const Options& options) {
  std::unique_ptr<ColdIndex> index(new ColdIndex(options, /*read_only=*/false));
  const Status opened = index->EnsureOpen();
  if (opened.ok()) return index;
  if (opened.code() != Code::kResourceExhausted || !index->OpenOnFullDisk().ok()) return opened;
  return index;
}

/// What stands there can be read without room for anything new.
Status ColdIndex::OpenOnFullDisk() {
  without_room_ = true;
  write_failed_ = true;
  return EnsureOpen();
}

Result<std::unique_ptr<ColdIndex>> ColdIndex::OpenReadOnly(const std::string& folder) {
  std::unique_ptr<ColdIndex> index(new ColdIndex({.folder = folder}, /*read_only=*/true));
  const Status opened = index->EnsureOpen();
  if (!opened.ok()) return Status(Code::kDataLoss, std::string(opened.message()));
  return index;
}

Status ColdIndex::EnsureOpen() {
  if (db_ != nullptr) return Status::Ok();
  return Guarded("open the index", [&]() -> Status {
    KVTIER_TRY(OpenDatabase());
    const Status status = TakeCleanMark();
    if (!status.ok()) Close();
    return status;
  });
}

Status ColdIndex::EnsureWritable() {
  if (without_room_) Close();
  without_room_ = false;
  const Status status = EnsureOpen();
  if (!status.ok()) write_failed_ = true;
  return status;
}

Status ColdIndex::OpenDatabase() {
  rocksdb::DB* db = nullptr;
  rocksdb::Options options = MakeOptions(options_.reserve_bytes);
  rocksdb::Status opened;
  if (opened_to_read()) {
    options.create_if_missing = false;
    opened = rocksdb::DB::OpenForReadOnly(options, options_.folder, &db);
  } else {
    opened = rocksdb::DB::Open(options, options_.folder, &db);
  }
  KVTIER_TRY(FromRocks(opened, "open the index " + options_.folder));
  db_.reset(db);
  return Status::Ok();
}

void ColdIndex::Close() {
  if (db_ == nullptr) return;
  Guarded("close the index", [&] {
    const Status status = FromRocks(db_->Close(), "close the index");
    db_.reset();
    return status;
  }).IgnoreBecause("what was not written is found by the scan");
}

Status ColdIndex::TakeCleanMark() {
  std::string value;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), ToSlice(kCleanKey), &value);
  if (found.IsNotFound()) return Status::Ok();
  KVTIER_TRY(FromRocks(found, "read the clean mark"));
  was_clean_ = true;
  if (opened_to_read()) return Status::Ok();
  // Synced: a mark that came back after a power failure would claim an index that is behind.
  rocksdb::WriteOptions synced;
  synced.sync = true;
  return FromRocks(db_->Delete(synced, ToSlice(kCleanKey)), "take the clean mark");
}

Result<uint64_t> ColdIndex::Load(const std::function<void(ColdRecord&&)>& visit) {
  uint64_t bad_entries = 0;
  KVTIER_TRY(EnsureOpen());
  KVTIER_TRY(Guarded("read the index", [&]() -> Status {
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
    rocksdb::WriteBatch deletions;
    for (it->Seek("b"); it->Valid() && it->key().starts_with("b"); it->Next()) {
      Result<ColdRecord> record = DecodeIndexEntry(ToView(it->key()), ToView(it->value()));
      if (record.ok()) {
        visit(std::move(record).value());
        continue;
      }
      ++bad_entries;
      deletions.Delete(it->key());
    }
    KVTIER_TRY(FromRocks(it->status(), "read the index"));
    it.reset();  // a write that fails closes the database
    return opened_to_read() ? Status::Ok() : Write(deletions, "drop damaged index entries");
  }));
  return bad_entries;
}

Status ColdIndex::Put(std::span<const ColdRecord> records) {
  KVTIER_TRY(EnsureWritable());
  return Guarded("write the index", [&]() -> Status {
    rocksdb::WriteBatch batch;
    for (const ColdRecord& record : records) {
      const std::string key = EncodeIndexKey(record);
      batch.Put(key, EncodeIndexValue(record));
      batch.Put(PlaceKey(record.place.container, record.place.offset), key);
    }
    return Write(batch, "write the index");
  });
}

Status ColdIndex::Erase(std::span<const ColdRecord> records) {
  KVTIER_TRY(EnsureWritable());
  return Guarded("erase from the index", [&]() -> Status {
    rocksdb::WriteBatch batch;
    for (const ColdRecord& record : records) {
      batch.Delete(PlaceKey(record.place.container, record.place.offset));
      const std::string key = EncodeIndexKey(record);
      std::string value;
      const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), key, &value);
      if (found.IsNotFound()) continue;
      KVTIER_TRY(FromRocks(found, "erase from the index"));
      Result<ColdRecord> entry = DecodeIndexEntry(key, value);
      const bool elsewhere = entry.ok() && (entry->place.container != record.place.container ||
                                            entry->place.offset != record.place.offset ||
                                            entry->place.epoch != record.place.epoch);
      if (!elsewhere) batch.Delete(key);
    }
    return Write(batch, "erase from the index");
  });
}

Status ColdIndex::EraseSegment(uint32_t segment) {
  KVTIER_TRY(EnsureWritable());
  return Guarded("erase a segment from the index", [&]() -> Status {
    const std::string end = PlaceKey(segment + 1, 0);
    const rocksdb::Slice end_slice(end);
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    options.iterate_upper_bound = &end_slice;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
    rocksdb::WriteBatch batch;
    for (it->Seek(PlaceKey(segment, 0)); it->Valid(); it->Next()) {
      batch.Delete(it->key());
      std::string value;
      const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), it->value(), &value);
      if (found.IsNotFound()) continue;
      KVTIER_TRY(FromRocks(found, "erase a segment from the index"));
      // The key may have been committed again, to another segment, since.
      Result<ColdRecord> entry = DecodeIndexEntry(ToView(it->value()), value);
      if (!entry.ok() || entry->place.container == segment) batch.Delete(it->value());
    }
    KVTIER_TRY(FromRocks(it->status(), "erase a segment from the index"));
    it.reset();  // a write that fails closes the database
    return Write(batch, "erase a segment from the index");
  });
}

Status ColdIndex::MarkClean() {
  if (write_failed_) return Status(Code::kFailedPrecondition, "a write to the index had failed");
  KVTIER_TRY(EnsureOpen());
  return Guarded("mark the index clean", [&]() -> Status {
    rocksdb::WriteOptions synced;
    synced.sync = true;
    return FromRocks(db_->Put(synced, ToSlice(kCleanKey), ""), "mark the index clean");
  });
}

Status ColdIndex::Write(rocksdb::WriteBatch& batch, std::string_view what) {
  if (batch.Count() == 0) return Status::Ok();
  const Status status = FromRocks(db_->Write(rocksdb::WriteOptions(), &batch), what);
  if (status.ok()) written_bytes_ += batch.GetDataSize();
  if (!status.ok()) {
    // RocksDB takes no more writes until its own recovery has had its time; opened anew it does at once.
    write_failed_ = true;
    Close();
  }
  return status;
}

}  // namespace kvtier
