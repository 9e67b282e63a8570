#include "tiers/cold_check.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "tiers/cold_folder.h"
#include "tiers/cold_index.h"
#include "tiers/cold_io.h"
#include "tiers/cold_scan.h"

namespace kvtier {

namespace {

using PlaceName = std::tuple<uint32_t, uint64_t, uint64_t>;  ///< segment, sequence, offset
PlaceName NameOf(const Place& place) {
  return {place.container, place.epoch, place.offset};
}

/// Refuses a store that a daemon uses; keeps one from starting meanwhile.
Result<UniqueFd> ShareLock(const std::string& path) {
  UniqueFd lock(::open((path + "/LOCK").c_str(), O_RDONLY | O_CLOEXEC));
  if (!lock.valid()) {
    if (errno == ENOENT) return lock;  // never opened by a daemon, or copied without it
    return StatusFromErrno(errno, "open LOCK");
  }
  if (::flock(lock.get(), LOCK_SH | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) return Status(Code::kFailedPrecondition, "a daemon uses it (LOCK is held)");
  return StatusFromErrno(errno, "lock LOCK");
}

/// One look at a folder, part by part.
class Check {
 public:
  Check(std::string path, const ColdFormat& format, BlockIo& io)
      : path_(std::move(path)), format_(format), io_(io) {}

  Result<ColdCheck> Run() {
    KVTIER_TRY(CheckSegments());
    KVTIER_TRY(CheckModels());
    CheckIndex();
    KVTIER_TRY(CountLeftovers());
    return std::move(out_);
  }

 private:
  void Damaged(std::string what) {
    if (out_.damage.size() < kMaxListedDamage) out_.damage.push_back(std::move(what));
  }

  Status CheckSegments() {
    const std::string folder = path_ + "/segments";
    KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
    for (const std::string& name : names) {
      const Result<uint32_t> number = ParseSegmentName(name);
      if (number.ok()) CheckSegment(folder + "/" + name, *number);
    }
    return Status::Ok();
  }

  void CheckSegment(const std::string& path, uint32_t number) {
    ++out_.segments;
    // NONBLOCK: whatever has that name, a check ends.
    ColdSegments::File file{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
    struct stat info {};
    AlignedBuffer buffer;
    FileSegmentBytes bytes(file, io_);
    const bool opens = file.fd.valid() && ::fstat(file.fd.get(), &info) == 0 && S_ISREG(info.st_mode);
    const auto file_bytes = static_cast<uint64_t>(info.st_size);
    Result<std::span<const std::byte>> block(Code::kDataLoss, "shorter than its header");
    if (opens && file_bytes >= kColdSegmentHeaderBytes)
      block = bytes.Read(0, kColdSegmentHeaderBytes, buffer);
    if (!block.ok()) {
      ++out_.damaged_headers;
      return Damaged(path + ": header: " + (opens ? block.status().message() : "no file that can be opened"));
    }
    SegmentHeader header;
    std::memcpy(&header, block->data(), sizeof(header));
    const Status sound = CheckSegmentHeader(header, format_.uuid, number, format_.segment_bytes);
    if (sound.code() == Code::kFailedPrecondition) {
      ++out_.foreign_files;
      return Damaged(path + ": " + std::string(sound.message()));
    }
    if (!sound.ok()) {
      ++out_.damaged_headers;
      return Damaged(path + ": header: " + std::string(sound.message()));
    }
    if (file_bytes < format_.segment_bytes) {
      ++out_.truncated_files;
      Damaged(path + ": truncated to " + std::to_string(file_bytes) + " bytes");
    }
    ColdScanner::Outcome found;
    ColdScanner(format_.uuid)
        .Scan(bytes, {.number = number, .sequence = header.sequence, .file_bytes = file_bytes},
              {kColdSegmentHeaderBytes, format_.segment_bytes}, found);
    Take(path, found);
  }

  void Take(const std::string& path, ColdScanner::Outcome& found) {
    out_.live += found.live.size();
    out_.damaged += found.bad.size();
    out_.unread_bytes += found.unread_bytes;
    if (found.unread_bytes > 0)
      Damaged(path + ": " + std::to_string(found.unread_bytes) + " bytes could not be read");
    for (const RecordHeader& bad : found.bad) {
      Damaged(path + ": record at " + std::to_string(bad.offset) + ": block " + Key{bad.key}.ToHex());
    }
    std::move(found.live.begin(), found.live.end(), std::back_inserter(live_));
  }

  Status CheckModels() {
    KVTIER_ASSIGN(const std::vector<ModelRecord> models,
                  ReadModelFiles(path_ + "/models", out_.damaged_models));
    out_.models = models.size();
    if (out_.damaged_models > 0) Damaged(std::to_string(out_.damaged_models) + " files in models/");
    std::set<decltype(NamespaceDigest::bytes)> known;
    for (const ModelRecord& model : models) known.insert(model.name_space.bytes);
    out_.orphans =
        static_cast<uint64_t>(std::count_if(live_.begin(), live_.end(), [&](const ColdRecord& record) {
          return !known.contains(record.identity.name_space.bytes);
        }));
    if (out_.orphans > 0) Damaged(std::to_string(out_.orphans) + " blocks of models that are not there");
    return Status::Ok();
  }

  void CheckIndex() {
    std::map<PlaceName, const ColdRecord*> places;
    for (const ColdRecord& record : live_) places.emplace(NameOf(record.place), &record);
    std::set<PlaceName> entries;
    const auto visit = [&](ColdRecord&& entry) {
      ++out_.index_entries;
      const auto at = places.find(NameOf(entry.place));
      if (at != places.end() && at->second->identity == entry.identity) {
        entries.insert(at->first);
        return;
      }
      ++out_.dangling_entries;
      Damaged("index: block " + entry.identity.key.ToHex() + " is not in segment " +
              std::to_string(entry.place.container) + " at " + std::to_string(entry.place.offset));
    };
    Result<std::unique_ptr<ColdIndex>> index = ColdIndex::OpenReadOnly(path_ + "/index");
    Result<uint64_t> bad(Code::kDataLoss, "");
    if (index.ok()) bad = (*index)->Load(visit);
    if (!index.ok() || !bad.ok()) {
      out_.index_damaged = true;
      out_.index_entries = out_.dangling_entries = 0;
      return Damaged(std::string(index.ok() ? bad.status().message() : index.status().message()));
    }
    out_.bad_entries = *bad;
    if (*bad > 0) Damaged("index: " + std::to_string(*bad) + " entries with a wrong checksum");
    out_.index_complete = (*index)->was_clean();
    CountUnindexed(entries);
  }

  /// Of several records of one block only the newest matters.
  void CountUnindexed(const std::set<PlaceName>& entries) {
    std::map<std::string, const ColdRecord*> newest;
    for (const ColdRecord& record : live_) {
      const ColdRecord*& best = newest[EncodeIndexKey(record)];
      const auto age = [](const ColdRecord& one) { return std::pair(one.place.epoch, one.place.offset); };
      if (best == nullptr || age(*best) < age(record)) best = &record;
    }
    for (const auto& [key, record] : newest) {
      if (entries.contains(NameOf(record->place))) continue;
      ++out_.unindexed;
      if (out_.index_complete) Damaged("index: knows nothing of block " + record->identity.key.ToHex());
    }
  }

  Status CountLeftovers() {
    for (const std::string& folder : {path_, path_ + "/segments", path_ + "/models"}) {
      KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
      out_.leftovers += static_cast<uint64_t>(std::count_if(names.begin(), names.end(), IsLeftover));
    }
    return Status::Ok();
  }

  const std::string path_;
  const ColdFormat format_;
  BlockIo& io_;
  std::vector<ColdRecord> live_;
  ColdCheck out_;
};

}  // namespace

bool ColdCheck::sound() const {
  return damaged_headers == 0 && truncated_files == 0 && foreign_files == 0 && damaged == 0 &&
         unread_bytes == 0 && !index_damaged && bad_entries == 0 && dangling_entries == 0 &&
         (unindexed == 0 || !index_complete) && damaged_models == 0 && orphans == 0;
}

Result<ColdCheck> CheckColdStore(const std::string& path) {
  const auto check = [&path]() -> Result<ColdCheck> {
    KVTIER_ASSIGN(const ColdFormat format, ReadColdFormat(path));
    KVTIER_ASSIGN(const UniqueFd lock, ShareLock(path));
    KVTIER_ASSIGN(const std::unique_ptr<BlockIo> io, MakeBlockIo(BlockIoKind::kSync));
    return Check(path, format, *io).Run();
  };
  Result<ColdCheck> result = check();
  if (!result.ok()) return result.status().WithContext("cold store " + path);
  return result;
}

}  // namespace kvtier
