// The memory of a CXL store after anything happened to it: start, reading, and the check of kvtierctl.
//
// A byte of choices, then changes to a store of three blocks: what to put in order afterwards, where, offset
// in two bytes, length, bytes.
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "tests/fuzz/cold_blocks.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "tiers/base/memfd.h"
#include "tiers/cxl_check.h"
#include "tiers/cxl_store.h"

namespace kvtier {
namespace {

constexpr uint64_t kSegmentBytes = 32768;
constexpr uint32_t kSegments = 4;
constexpr uint64_t kCapacity = kCxlMetaBytes + kSegments * kSegmentBytes;
constexpr size_t kMaxChanges = 24;
constexpr uint64_t kBlocksOfSegment = kSegmentBytes / kColdBlockBytes;
/// Places of a change: two superblocks, the models, then the blocks of the segments.
constexpr uint8_t kModelsUnit = 2, kFirstBlockUnit = 3;
constexpr uint8_t kUnits = kFirstBlockUnit + kSegments * kBlocksOfSegment;

enum Choice : uint8_t { kWasKilled = 1, kForgets = 2, kPages = 4, kCheckFile = 8, kShrunk = 16 };
enum Repair : uint8_t { kHeaderCrc = 1, kPayloadCrc = 2 };

using Bytes = std::vector<std::byte>;

class PlainMemory final : public CxlMemory {
 public:
  PlainMemory(Bytes& bytes, CxlPersistence persistence) : bytes_(bytes), persistence_(persistence) {}
  std::span<const std::byte> span() const override { return bytes_; }
  CxlPersistence persistence() const override { return persistence_; }
  bool lost() const override { return false; }
  uint64_t stale_bytes() const override { return bytes_.size(); }
  void Write(uint64_t offset, std::span<const std::byte> bytes) override {
    KVTIER_CHECK(offset <= bytes_.size() && bytes.size() <= bytes_.size() - offset);
    if (!bytes.empty()) std::memcpy(bytes_.data() + offset, bytes.data(), bytes.size());
  }
  void Zero(uint64_t offset, uint64_t bytes) override {
    KVTIER_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
    std::memset(bytes_.data() + offset, 0, bytes);
  }
  Status Persist(uint64_t offset, uint64_t bytes) override {
    KVTIER_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
    return Status::Ok();
  }

 private:
  Bytes& bytes_;
  const CxlPersistence persistence_;
};

CxlStoreOptions Options() {
  return {
      .tier = TierId{2}, .capacity_bytes = kCapacity, .segment_bytes = kSegmentBytes, .tenant = "uid:1000"};
}

Result<std::unique_ptr<CxlStore>> OpenStore(Bytes& bytes, CxlPersistence persistence) {
  return CxlStore::Make(Options(), std::make_unique<PlainMemory>(bytes, persistence));
}

BlockIo& Io() {
  static const std::unique_ptr<BlockIo> io = MakeBlockIo(BlockIoKind::kSync).value();
  return *io;
}

/// As it stands after a clean stop, and after a kill.
struct StoredImages {
  Bytes stopped, killed;
};
const StoredImages& Stored() {
  static const StoredImages images = [] {
    StoredImages made;
    Bytes bytes(kCapacity);
    // With a uuid of its own the memory is the same every time.
    const CxlSuperblock superblock = MakeCxlSuperblock({std::byte{1}}, kSegmentBytes, 0, Options().tenant);
    for (uint64_t copy = 0; copy < kCxlSuperblocks; ++copy)
      std::memcpy(bytes.data() + copy * kColdBlockBytes, &superblock, sizeof(superblock));
    auto store = OpenStore(bytes, CxlPersistence::kByte).value();
    FillColdStore(*store, Io(), store->Recover().value().least_sequence);
    made.killed = bytes;
    store.reset();
    made.stopped = bytes;
    return made;
  }();
  return images;
}

uint64_t OffsetOf(uint8_t unit) {
  if (unit < kModelsUnit) return unit * kColdBlockBytes;
  if (unit == kModelsUnit) return kCxlModelsOffset;
  return kCxlMetaBytes + uint64_t{unit - uint32_t{kFirstBlockUnit}} * kColdBlockBytes;
}

void PutInOrder(std::span<std::byte> block, uint8_t unit, uint8_t repair) {
  if (unit < kModelsUnit) {
    CxlSuperblock superblock;
    std::memcpy(&superblock, block.data(), sizeof(superblock));
    superblock = Sealed(superblock);
    std::memcpy(block.data(), &superblock, sizeof(superblock));
  } else if (unit == kModelsUnit) {
    CxlModelHeader header;
    std::memcpy(&header, block.data(), sizeof(header));
    const uint64_t fields = std::min<uint64_t>(header.fields_bytes, block.size() - sizeof(header));
    header.crc = Crc32c(block.first(sizeof(header) + fields).subspan(offsetof(CxlModelHeader, fields_bytes)));
    std::memcpy(block.data(), &header, sizeof(header));
  } else if ((unit - kFirstBlockUnit) % kBlocksOfSegment == 0) {
    RepairSegmentCrc(block);
  } else {
    if ((repair & kPayloadCrc) != 0) RepairPayloadHeader(block.subspan(kColdRecordHeaderBytes));
    if ((repair & kHeaderCrc) != 0) RepairRecordCrc(block.first(kColdRecordHeaderBytes));
  }
}

FoundRules Change(InputReader& input, Bytes& bytes) {
  FoundRules rules;
  rules.must_be_there.fill(true);
  for (size_t change = 0; change < kMaxChanges && !input.empty(); ++change) {
    const uint8_t repair = input.Next() % 4;
    const uint8_t unit = input.Next() % kUnits;
    const uint16_t offset = input.Next16() % kColdBlockBytes;
    const std::span<std::byte> block = std::span(bytes).subspan(OffsetOf(unit), kColdBlockBytes);
    const std::span<const std::byte> content = input.Take(input.Next());
    std::copy_n(content.begin(), std::min<size_t>(content.size(), block.size() - offset),
                block.begin() + offset);
    rules.forged |= repair != 0;
    if (repair != 0) PutInOrder(block, unit, repair);
    const uint8_t record = unit - kFirstBlockUnit;
    const bool one_record = unit >= kFirstBlockUnit && record % kBlocksOfSegment != 0;
    const bool base = one_record && record <= kColdBlocks;
    if (base) rules.must_be_there[record - 1u] = false;
    if (!one_record) rules.must_be_there.fill(false);
  }
  if (rules.forged) rules.must_be_there.fill(false);
  return rules;
}

std::vector<std::pair<Key, Place>> PlacesOf(const ColdRecovery& found) {
  std::vector<std::pair<Key, Place>> places;
  for (const RecoveredBlock& block : found.blocks) places.emplace_back(block.identity.key, block.place);
  return places;
}

/// The memory as a file, looked at as kvtierctl does.
Result<CxlCheck> CheckAsFile(const Bytes& bytes, uint64_t file_bytes) {
  static const UniqueFd file = MakeMemoryFile("cxl", kCapacity).value();
  KVTIER_CHECK(::ftruncate(file.get(), static_cast<off_t>(file_bytes)) == 0);
  KVTIER_CHECK(::pwrite(file.get(), bytes.data(), file_bytes, 0) == static_cast<ssize_t>(file_bytes));
  return CheckCxlStore("/proc/self/fd/" + std::to_string(file.get()));
}

}  // namespace

bool RunCxl(std::span<const std::byte> input_bytes) {
  InputReader input(input_bytes);
  const uint8_t choices = input.Next();
  static Bytes bytes;
  bytes = (choices & kWasKilled) != 0 ? Stored().killed : Stored().stopped;
  FoundRules rules = Change(input, bytes);
  const CxlPersistence persistence = (choices & kForgets) != 0 ? CxlPersistence::kNone
                                     : (choices & kPages) != 0 ? CxlPersistence::kPage
                                                               : CxlPersistence::kCacheLine;
  Result<CxlCheck> check(Code::kUnavailable, "not asked for");
  if ((choices & kCheckFile) != 0) {
    check = CheckAsFile(bytes, (choices & kShrunk) != 0 ? kCapacity - kSegmentBytes / 2 : kCapacity);
  }
  Result<std::unique_ptr<CxlStore>> store = OpenStore(bytes, persistence);
  if (!store.ok()) return false;
  Result<ColdRecovery> found = (*store)->Recover();
  KVTIER_CHECK(found.ok());  // the memory takes every write
  if (persistence == CxlPersistence::kNone) rules.must_be_there.fill(false);
  CheckFoundBlocks(**store, Io(), *found, rules);
  // A tail whose base was never written, or erased, is no damage.
  if (check.ok() && check->sound() && persistence != CxlPersistence::kNone)
    KVTIER_CHECK(found->dropped_records == found->orphan_tails && found->damaged_headers == 0);
  // What was dropped is dropped once: after a stop in order the next start finds the same, and nothing to
  // drop.
  store->reset();
  store = OpenStore(bytes, persistence);
  KVTIER_CHECK(store.ok());
  if (persistence == CxlPersistence::kNone) return true;
  const Result<ColdRecovery> again = (*store)->Recover();
  KVTIER_CHECK(again.ok() && PlacesOf(*again) == PlacesOf(*found));
  return true;
}

std::vector<FuzzTarget::Bytes> CxlSeeds() {
  std::vector<FuzzTarget::Bytes> seeds;
  for (const uint8_t choices : {uint8_t{0}, uint8_t{kWasKilled | kCheckFile}, uint8_t{kPages | kCheckFile}}) {
    // Each kind of place, with and without being put in order.
    for (const uint8_t unit : {0, 2, 3, 4, 12, 20}) {
      InputWriter input;
      input.Put(choices);
      input.Put(choices == 0 ? 0 : kHeaderCrc | kPayloadCrc).Put(unit).Put16(40).Put(2).Put16(0x0102);
      input.Put(0).Put(static_cast<uint8_t>(unit + 1)).Put16(300).Put(1).Put(0x55);
      seeds.push_back(input.Take());
    }
  }
  return seeds;
}

}  // namespace kvtier
