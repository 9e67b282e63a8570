#include <algorithm>
#include <cstring>
#include <filesystem>

#include "tests/tiers/cxl_fixture.h"
#include "tiers/cxl_store.h"
#include "tiers/segment_allocator.h"

namespace kvtier {
namespace {

class TenantStoreTest : public testing::Test {
 protected:
  std::unique_ptr<CxlStore> Make(const std::string& tenant, uint64_t capacity_bytes = kTestCapacityBytes) {
    CxlStoreOptions options = TestCxlOptions();
    options.tenant = tenant;
    options.capacity_bytes = capacity_bytes;
    auto mapping = MapForCxlStore(options, CxlFileTarget(folder_.path())).value();
    bytes_ = mapping->span();
    return CxlStore::Make(options, std::move(mapping)).value();
  }
  std::string Path() const { return folder_.path() + "/" + std::string(kCxlFileName); }
  uint32_t Version() const {
    uint32_t version;
    std::memcpy(&version, bytes_.data() + offsetof(CxlSuperblock, version), sizeof(version));
    return version;
  }
  uint64_t SequenceOf(uint32_t segment) const {
    uint64_t sequence;
    std::memcpy(
        &sequence,
        bytes_.data() + CxlSegmentOffset(segment, kTestSegmentBytes) + offsetof(SegmentHeader, sequence),
        sizeof(sequence));
    return sequence;
  }

  TempFolder folder_;
  std::span<const std::byte> bytes_;
};

TEST_F(TenantStoreTest, AStoreIsOneTenantsFromItsMakingOnOrNever) {
  for (const char* tenant : {"uid:1", "uid:1", "uid:2", ""}) {
    const auto store = Make(tenant);
    EXPECT_EQ(store->tenant(), "uid:1") << tenant;
    EXPECT_EQ(Version(), kCxlTenantVersion) << "older programs would put others' blocks there";
  }
  std::filesystem::remove(Path());
  for (const char* tenant : {"", "uid:1"}) {
    const auto store = Make(tenant);
    EXPECT_EQ(store->tenant(), "") << tenant;
    EXPECT_EQ(Version(), kColdFormatVersion);
  }
}

/// What stands behind the superblocks, which are random in part.
int64_t CountOf(char byte, std::span<const std::byte> memory) {
  const std::span<const std::byte> rest = memory.subspan(kCxlModelsOffset);
  return std::count(rest.begin(), rest.end(), static_cast<std::byte>(byte));
}

TEST_F(TenantStoreTest, WhatStoodInTheMemoryBeforeIsGoneWhereATenantsClientsWillMapIt) {
  for (const std::string tenant : {"uid:1", ""}) {
    {
      std::ofstream file(Path(), std::ios::binary | std::ios::trunc);
      file << std::string(CxlMapping::kStartBytes, '\0');
      file << std::string(kTestCapacityBytes - CxlMapping::kStartBytes, 'z');
    }
    const auto store = Make(tenant);
    if (tenant.empty()) {
      EXPECT_GT(CountOf('z', bytes_), 0);
    } else {
      EXPECT_EQ(CountOf('z', bytes_), 0);
    }
  }
}

TEST_F(TenantStoreTest, SoIsWhatADeviceHasBeyondTheCapacity) {
  {
    std::ofstream file(Path(), std::ios::binary | std::ios::trunc);
    file << std::string(CxlMapping::kStartBytes, '\0');
    file << std::string(2 * kTestCapacityBytes - CxlMapping::kStartBytes, 'z');
  }
  CxlStoreOptions options = TestCxlOptions();
  options.tenant = "uid:1";
  auto mapping =
      MapForCxlStore(options, {.kind = CxlKind::kDevDax, .path = Path(), .device_keeps_data = true}).value();
  const std::span<const std::byte> seen(mapping->span().data(), mapping->mapped_bytes());
  ASSERT_EQ(seen.size(), 2 * kTestCapacityBytes);
  const auto store = CxlStore::Make(options, std::move(mapping)).value();
  EXPECT_EQ(CountOf('z', seen), 0);
}

TEST_F(TenantStoreTest, S12_WhoReadsARecordInPlaceFindsItWholeUntilTheSegmentIsInAnotherUse) {
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  const auto store = Make("uid:1");
  ASSERT_TRUE(store->Recover().ok());
  TestAllocator allocator;
  const ColdRecord record = WriteBlock(*store, *io, allocator, 1).value();
  ASSERT_TRUE(store->Commit({&record, 1}, *io).ok());
  const auto image = bytes_.subspan(CxlSegmentOffset(record.place.container, kTestSegmentBytes) +
                                        record.place.offset + kColdRecordHeaderBytes,
                                    record.image_bytes);
  const std::vector<std::byte> expected = ImageOf(MakeTestBlock(1));
  ASSERT_TRUE(std::equal(image.begin(), image.end(), expected.begin(), expected.end()));
  EXPECT_EQ(SequenceOf(record.place.container), record.place.epoch);
  ASSERT_TRUE(store->Erase({&record, 1}, *io).ok());
  EXPECT_TRUE(std::equal(image.begin(), image.end(), expected.begin(), expected.end()));
  EXPECT_EQ(SequenceOf(record.place.container), record.place.epoch);
  ASSERT_TRUE(store->RecycleSegment(record.place.container, record.place.epoch + 5, *io).ok());
  EXPECT_EQ(SequenceOf(record.place.container), record.place.epoch + 5);
}

TEST_F(TenantStoreTest, NoStartUsesASequenceOfAnEarlierOneAgain) {
  uint64_t last = 0;
  for (const uint64_t capacity : {kTestCapacityBytes, kTestCapacityBytes / 2, kTestCapacityBytes}) {
    const uint64_t least = Make("uid:1", capacity)->Recover().value().least_sequence;
    EXPECT_GT(least, last + (uint64_t{1} << 31));
    last = least;
  }
  SegmentAllocator allocator(TierId{2}, kTestSegmentBytes, 4);
  allocator.StartAt(last);
  EXPECT_GE(allocator.Append(4096, 1)->epoch, last);
}

/// Its clients know the uuid, and choose the bytes of its blocks.
TEST_F(TenantStoreTest, ASequenceThatNoDaemonGaveIsNotTakenFromARecord) {
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  auto store = Make("uid:1");
  ASSERT_TRUE(store->Recover().ok());
  TestAllocator allocator;
  const ColdRecord outer = WriteBlock(*store, *io, allocator, 2).value();
  ASSERT_TRUE(store->Commit({&outer, 1}, *io).ok());
  ColdRecord forged = outer;
  forged.place.offset += kSlotAlign;
  forged.place.bytes = kSlotAlign;
  forged.place.epoch = UINT64_MAX;
  forged.image_bytes = 100;
  const RecordHeader header = MakeRecordHeader(store->uuid(), forged, RecordState::kLive);
  store.reset();
  {
    std::fstream file(Path(), std::ios::in | std::ios::out | std::ios::binary);
    const uint64_t segment = CxlSegmentOffset(outer.place.container, kTestSegmentBytes);
    file.seekp(static_cast<std::streamoff>(segment));
    file.write("damaged", 7);
    file.seekp(static_cast<std::streamoff>(segment + forged.place.offset));
    file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  }
  const ColdRecovery recovery = Make("uid:1")->Recover().value();
  ASSERT_EQ(recovery.segments.size(), 1u);
  EXPECT_EQ(recovery.segments[0].sequence, outer.place.epoch);
}

}  // namespace
}  // namespace kvtier
