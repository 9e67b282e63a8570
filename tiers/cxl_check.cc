#include "tiers/cxl_check.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "tiers/cold_check.h"
#include "tiers/cold_scan.h"
#include "tiers/cxl_models.h"
#include "tiers/cxl_reader.h"

namespace kvtier {

namespace {

/// Of the models' area: where a read fails, so much is lost to the check.
constexpr uint64_t kPieceBytes = uint64_t{64} << 10;
constexpr uint64_t kStartBytes = uint64_t{128} << 10;  ///< that say whether it is a store

/// One segment of the memory.
class ReaderSegmentBytes final : public SegmentBytes {
 public:
  ReaderSegmentBytes(CxlReader& memory, uint64_t begin) : memory_(memory), begin_(begin) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes, AlignedBuffer& buffer) override {
    return memory_.Read(begin_ + offset, bytes, buffer);
  }

 private:
  CxlReader& memory_;
  const uint64_t begin_;
};

/// One look at a memory, part by part.
class Check {
 public:
  explicit Check(CxlReader& memory) : memory_(memory) {}

  Result<CxlCheck> Run() {
    KVTIER_TRY(ReadSuperblock());
    CheckSize();
    CheckModels();
    for (uint32_t number = 0; number < superblock_.segment_limit; ++number) CheckSegment(number);
    CountOrphans();
    if (memory_.lost()) Unread("pages of the device", kColdBlockBytes);
    return std::move(out_);
  }

 private:
  void Damaged(const std::string& what) {
    if (out_.damage.size() < kMaxListedDamage) out_.damage.push_back(memory_.path() + ": " + what);
  }
  void Unread(const std::string& what, uint64_t bytes) {
    out_.unread_bytes += bytes;
    Damaged(what + " could not be read");
  }
  uint64_t BytesFrom(uint64_t offset) const { return memory_.bytes() - std::min(offset, memory_.bytes()); }

  Status ReadSuperblock() {
    KVTIER_ASSIGN(const auto start, memory_.Read(0, std::min(kStartBytes, memory_.bytes()), buffer_));
    KVTIER_ASSIGN(const CxlStart found, ReadCxlStart(start));
    if (found.blank) return Status(Code::kNotFound, "holds no store yet: a start of the daemon makes one");
    superblock_ = found.superblock;
    out_.closed = superblock_.clean == 1;
    out_.superblock_damaged = found.one_damaged;
    if (found.one_damaged) Damaged("one of the two superblocks");
    return Status::Ok();
  }

  void CheckSize() {
    const uint64_t made = CxlSegmentOffset(superblock_.segment_limit, superblock_.segment_bytes);
    if (memory_.bytes() >= made) return;
    out_.missing_bytes = made - memory_.bytes();
    Damaged("truncated to " + std::to_string(memory_.bytes()) + " bytes of " + std::to_string(made));
  }

  void CheckModels() {
    std::vector<std::byte> start(kCxlMetaBytes);  // zeros where nothing was read
    for (uint64_t at = 0; at < kCxlMetaBytes; at += kPieceBytes) {
      const uint64_t bytes = std::min(kPieceBytes, BytesFrom(at));
      if (bytes == 0) break;
      const auto read = memory_.Read(at, bytes, buffer_);
      if (read.ok()) {
        std::copy(read->begin(), read->end(), start.begin() + static_cast<ptrdiff_t>(at));
      } else {
        Unread(std::to_string(bytes) + " bytes of the models at " + std::to_string(at), bytes);
      }
    }
    const CxlModelArea area = ReadCxlModels(start, superblock_.uuid);
    for (const auto& [name_space, fields] : area.fields) models_.insert(name_space);
    out_.models = area.fields.size();
    out_.damaged_models = area.damaged.size();
    for (const auto& range : area.damaged) Damaged("model at " + std::to_string(range.begin));
  }

  void CheckSegment(uint32_t number) {
    const std::string name = "segment " + std::to_string(number) + ": ";
    const uint64_t begin = CxlSegmentOffset(number, superblock_.segment_bytes);
    const uint64_t bytes = std::min(superblock_.segment_bytes, BytesFrom(begin));
    if (bytes < kColdSegmentHeaderBytes) return;  // counted as missing
    const auto block = memory_.Read(begin, kColdSegmentHeaderBytes, buffer_);
    if (!block.ok()) {
      ++out_.segments;
      ++out_.damaged_headers;
      return Damaged(name + "header: " + std::string(block.status().message()));
    }
    if (IsZero(*block)) return;  // never used
    ++out_.segments;
    SegmentHeader header;
    std::memcpy(&header, block->data(), sizeof(header));
    const Status sound = CheckSegmentHeader(header, superblock_.uuid, number, superblock_.segment_bytes);
    if (sound.code() == Code::kFailedPrecondition) {
      ++out_.foreign_segments;
      return Damaged(std::string(sound.message()));
    }
    if (!sound.ok()) {
      ++out_.damaged_headers;
      return Damaged(name + "header");
    }
    ReaderSegmentBytes segment(memory_, begin);
    ColdScanner::Outcome found;
    ColdScanner(superblock_.uuid)
        .Scan(segment, {.number = number, .sequence = header.sequence, .file_bytes = bytes},
              {kColdSegmentHeaderBytes, superblock_.segment_bytes}, found);
    Take(name, found);
  }

  void Take(const std::string& name, const ColdScanner::Outcome& found) {
    const auto at = [&](uint64_t offset) { return name + "record at " + std::to_string(offset); };
    const auto block = [](const auto& key) { return ": block " + Key{key}.ToHex(); };
    out_.damaged += found.bad.size() + found.damaged.size();
    for (const uint64_t offset : found.damaged) Damaged(at(offset) + ": header");
    for (const RecordHeader& bad : found.bad) Damaged(at(bad.offset) + block(bad.key));
    if (found.unread_bytes > 0)
      Unread(name + std::to_string(found.unread_bytes) + " bytes", found.unread_bytes);
    for (const ColdRecord& record : found.live) {
      if (record.place.part != found.live[0].place.part) {
        ++out_.damaged;
        Damaged(at(record.place.offset) + " is of another part than the first" +
                block(record.identity.key.bytes));
        continue;
      }
      ++out_.live;
      if (!models_.contains(record.identity.name_space.bytes)) ++out_.orphans;
    }
  }

  void CountOrphans() {
    if (out_.orphans > 0) Damaged(std::to_string(out_.orphans) + " blocks of models that are not there");
  }

  CxlReader& memory_;
  CxlSuperblock superblock_{};
  AlignedBuffer buffer_;
  std::set<decltype(NamespaceDigest::bytes)> models_;
  CxlCheck out_;
};

}  // namespace

bool CxlCheck::sound() const {
  return damaged_headers == 0 && foreign_segments == 0 && missing_bytes == 0 && damaged == 0 &&
         unread_bytes == 0 && damaged_models == 0 && orphans == 0 && !superblock_damaged;
}

Result<CxlCheck> CheckCxlStore(const std::string& path, const CxlSystem& system) {
  const auto check = [&]() -> Result<CxlCheck> {
    KVTIER_ASSIGN(const CxlTarget target, ResolveCxl({.path = path}, system));
    KVTIER_ASSIGN(const std::unique_ptr<CxlReader> memory, CxlReader::Open(target));
    return Check(*memory).Run();
  };
  Result<CxlCheck> result = check();
  if (!result.ok()) return result.status().WithContext("CXL store " + path);
  return result;
}

}  // namespace kvtier
