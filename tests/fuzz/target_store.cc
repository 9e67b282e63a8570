// The folder of an NVMe store after anything happened to its files: check, repair, start, reading and writing
// on.
//
// A byte of choices, then changes to a store of three blocks: kind and what to put in order afterwards, file,
// offset in two bytes, length, bytes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/cold_blocks.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "tiers/cold_check.h"
#include "tiers/cold_folder.h"
#include "tiers/cold_index.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSegmentBytes = 32768;
constexpr uint64_t kCapacity = uint64_t{16} << 20;
constexpr size_t kMaxChanges = 16;

enum Choice : uint8_t { kWasKilled = 1, kNoIndex = 2, kRepair = 4, kCheck = 8 };
enum Kind : uint8_t { kWrite, kCut, kRemove, kEntry, kCopy, kKinds };
enum Repair : uint8_t { kHeaderCrc = 1, kPayloadCrc = 2 };
/// Files of a change; index files by number after the last.
enum File : uint8_t { kFormat, kModel, kBases, kKTails, kVTails, kIndexFiles, kFiles = 12 };

BlockIo& Io() {
  static const std::unique_ptr<BlockIo> io = MakeBlockIo(BlockIoKind::kSync).value();
  return *io;
}

/// In memory where there is such a folder: each input has some twenty files.
class WorkFolder {
 public:
  static const WorkFolder& Get() {
    static const WorkFolder folder;
    return folder;
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  std::string store() const { return path_ + "/store"; }
  const std::string& stopped() const { return stopped_; }
  const std::string& killed() const { return killed_; }

 private:
  WorkFolder() {
    const fs::path memory = "/dev/shm";
    const fs::path parent = fs::exists(memory) ? memory : fs::temp_directory_path();
    path_ = (parent / "kvtier-fuzz-XXXXXX").string();
    KVTIER_CHECK(::mkdtemp(path_.data()) != nullptr);
    stopped_ = path_ + "/stopped";
    killed_ = path_ + "/killed";
    fs::create_directory(stopped_);
    auto opened = Open(stopped_);
    FillColdStore(*opened, Io(), opened->Recover().value().least_sequence);
    fs::copy(stopped_, killed_, fs::copy_options::recursive);
  }
  static std::unique_ptr<ColdStore> Open(const std::string& path);

  std::string path_, stopped_, killed_;
};

ColdStoreOptions Options(const std::string& path) {
  return {.tier = TierId{2},
          .path = path,
          .capacity_bytes = kCapacity,
          .segment_bytes = kSegmentBytes,
          .allow_direct_io = false};
}

std::unique_ptr<ColdStore> WorkFolder::Open(const std::string& path) {
  return ColdStore::Make(Options(path)).value();
}

std::string SegmentPath(const std::string& store, uint32_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "/segments/%08u.seg", number);
  return store + name;
}

std::string PathOf(const std::string& store, uint8_t file) {
  if (file == kFormat) return store + "/FORMAT";
  if (file == kModel) return store + "/models/" + ModelFileName(ColdBlockOf(1).identity.name_space);
  if (file < kIndexFiles) return SegmentPath(store, file - uint32_t{kBases});
  std::vector<std::string> names = ListFolder(store + "/index").value();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("LOG"); });  // for people
  return names.empty() ? std::string() : store + "/index/" + names[(file - kIndexFiles) % names.size()];
}

void PutInOrder(int fd, uint64_t offset, uint8_t repair) {
  const uint64_t at = offset / kColdBlockBytes * kColdBlockBytes;
  std::vector<std::byte> block(kColdBlockBytes);
  if (::pread(fd, block.data(), block.size(), static_cast<off_t>(at)) != static_cast<ssize_t>(block.size()))
    return;
  if (at == 0) {
    RepairSegmentCrc(block);
  } else {
    if ((repair & kPayloadCrc) != 0) RepairPayloadHeader(std::span(block).subspan(kColdRecordHeaderBytes));
    if ((repair & kHeaderCrc) != 0) RepairRecordCrc(std::span(block).first(kColdRecordHeaderBytes));
  }
  KVTIER_CHECK(::pwrite(fd, block.data(), block.size(), static_cast<off_t>(at)) ==
               static_cast<ssize_t>(block.size()));
}

/// A sound entry that says anything.
void PutEntry(const std::string& store, InputReader& input) {
  const Result<std::unique_ptr<ColdIndex>> index =
      ColdIndex::Open({.folder = store + "/index", .reserve_bytes = ColdIndexReserveBytes(kCapacity)});
  if (!index.ok()) return;
  ColdRecord record = RecordOf(ColdBlockOf(1 + input.Next() % kColdBlocks),
                               {.tier = TierId{2}, .part = static_cast<ColdPart>(input.Next() % kColdParts)});
  record.place.container = input.Next() % 2 == 0 ? input.Next() % 8 : input.Next32();
  record.place.epoch = input.Next() % 2 == 0 ? input.Next() % 8 : input.Next64();
  record.place.offset = input.Next() % 2 == 0 ? input.Next() * kColdBlockBytes : input.Next64();
  record.place.bytes = input.Next() % 2 == 0 ? input.Next() * kColdBlockBytes : input.Next64();
  record.image_bytes = input.Next() % 2 == 0 ? record.image_bytes : input.Next64();
  record.codec = static_cast<CodecId>(input.Next());
  if (input.Next() % 2 == 0) record.identity.key.bytes[0] ^= std::byte{1};
  if (input.Next() % 2 == 0) record.identity.shape.layers = input.Next16();
  if (input.Next() % 2 == 0) record.identity.shape.tokens = input.Next16();
  (*index)->Put({&record, 1}).IgnoreBecause("then there is one less");
  if (input.Next() % 2 == 0) (*index)->MarkClean().IgnoreBecause("then it was a kill");
}

/// What a file system, a disk or a hand may do to one file.
void ChangeFile(Kind kind, const std::string& path, InputReader& input, uint8_t repair) {
  const uint16_t offset = input.Next16();
  const std::span<const std::byte> content = input.Take(input.Next());
  if (path.empty()) return;
  std::error_code error;
  if (kind == kRemove) {
    fs::remove(path, error);
  } else if (kind == kCopy) {
    fs::copy(path, path.substr(0, path.rfind('/')) + "/" + "00000007.seg", error);
  } else {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file.valid()) return;
    if (kind == kCut) {
      KVTIER_CHECK(::ftruncate(file.get(), offset) == 0);
      return;
    }
    KVTIER_CHECK(::pwrite(file.get(), content.data(), content.size(), offset) ==
                 static_cast<ssize_t>(content.size()));
    if (repair != 0 && path.ends_with(".seg")) PutInOrder(file.get(), offset, repair);
  }
}

FoundRules Change(const std::string& store, InputReader& input) {
  FoundRules rules;
  rules.must_be_there.fill(true);
  for (size_t change = 0; change < kMaxChanges && !input.empty(); ++change) {
    const uint8_t what = input.Next();
    const auto kind = static_cast<Kind>(what % kKinds);
    const uint8_t repair = what / kKinds % 4;
    if (kind == kEntry) {
      PutEntry(store, input);
      rules.forged = true;
      continue;
    }
    const uint8_t file = input.Next() % kFiles;
    rules.forged |= repair != 0 && file >= kBases && file < kIndexFiles;
    // Without the file of their model no block is of use, and index and tails can be done without.
    if (file == kFormat || file == kModel || file == kBases) rules.must_be_there.fill(false);
    ChangeFile(kind, PathOf(store, file), input, repair);
  }
  if (rules.forged) rules.must_be_there.fill(false);
  return rules;
}

/// After a start the store takes new blocks.
void WriteOn(ColdStore& store, const ColdRecovery& found) {
  Place place;
  place.tier = TierId{2};
  place.offset = kColdSegmentHeaderBytes;
  place.bytes = kColdBlockBytes;
  place.epoch = found.least_sequence;
  for (const RecoveredSegment& segment : found.segments) {
    place.container = std::max(place.container, segment.number + 1);
    place.epoch = std::max(place.epoch, segment.sequence + 1);
  }
  if (place.epoch == 0 || place.container >= ColdSegmentLimit(kCapacity, kSegmentBytes)) return;
  const ColdBlock& block = ColdBlockOf(1);
  AlignedBuffer bounce;
  const std::span<std::byte> built = store.BeginWrite(place, bounce).value();
  std::copy(block.parts[0].begin(), block.parts[0].end(), built.begin());
  KVTIER_CHECK(store.FinishWrite(place, Io(), built, block.parts[0].size(), block.meta).ok());
  const ColdRecord record = RecordOf(block, place);
  KVTIER_CHECK(store.Commit({&record, 1}, Io()).ok());
  const Result<std::span<const std::byte>> read = store.Read(place, Io(), bounce);
  KVTIER_CHECK(read.ok() && std::ranges::equal(*read, block.parts[0]));
}

void CheckAndRepair(const std::string& path, uint8_t choices) {
  if ((choices & kCheck) != 0) CheckColdStore(path).status().IgnoreBecause("that it ends is what matters");
  if ((choices & kRepair) == 0) return;
  if (!RepairColdStore(path).ok()) return;
  const Result<ColdCheck> check = CheckColdStore(path);
  KVTIER_CHECK(check.ok() && check->sound());
}

}  // namespace

bool RunStore(std::span<const std::byte> bytes) {
  InputReader input(bytes);
  const uint8_t choices = input.Next();
  const WorkFolder& folder = WorkFolder::Get();
  const std::string path = folder.store();
  fs::remove_all(path);
  fs::copy((choices & kWasKilled) != 0 ? folder.killed() : folder.stopped(), path,
           fs::copy_options::recursive);
  const FoundRules rules = Change(path, input);
  if ((choices & kNoIndex) != 0) fs::remove_all(path + "/index");
  CheckAndRepair(path, choices);
  Result<std::unique_ptr<ColdStore>> store = ColdStore::Make(Options(path));
  if (!store.ok()) return false;
  const Result<ColdRecovery> found = (*store)->Recover();
  if (!found.ok()) return false;
  CheckFoundBlocks(**store, Io(), *found, rules);
  WriteOn(**store, *found);
  return true;
}

std::vector<FuzzTarget::Bytes> StoreSeeds() {
  std::vector<FuzzTarget::Bytes> seeds;
  for (const uint8_t choices :
       {uint8_t{kCheck}, uint8_t{kWasKilled | kRepair}, uint8_t{kNoIndex | kRepair | kCheck}}) {
    for (const uint8_t file :
         {uint8_t{kModel}, uint8_t{kBases}, uint8_t{kVTails}, uint8_t{kIndexFiles + 1}}) {
      InputWriter input;
      input.Put(choices);
      input.Put(kWrite + kKinds * (choices % 4)).Put(file).Put16(4096 + 40).Put(2).Put16(0x0102);
      seeds.push_back(input.Take());
    }
  }
  InputWriter entry;
  entry.Put(kCheck | kRepair)
      .Put(kEntry)
      .Put(0)
      .Put(0)
      .Put(0)
      .Put(1)
      .Put(0)
      .Put(1)
      .Put(0)
      .Put(1)
      .Put(0)
      .Put(1);
  seeds.push_back(entry.Take());
  InputWriter files;
  files.Put(kWasKilled).Put(kCut).Put(kKTails).Put16(9000).Put(0).Put(kCopy).Put(kBases).Put16(0).Put(0);
  seeds.push_back(files.Put(kRemove).Put(kIndexFiles).Put16(0).Put(0).Take());
  return seeds;
}

}  // namespace kvtier
