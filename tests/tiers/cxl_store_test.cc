#include "tiers/cxl_store.h"

#include <gmock/gmock.h>

#include <cstring>
#include <set>

#include "tests/tiers/cxl_fixture.h"
#include "tests/tiers/power_cut_memory.h"
#include "tiers/segment_allocator.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSmallBytes = kCxlMetaBytes + 6 * kTestSegmentBytes;

CxlStoreOptions SmallOptions() {
  return {.tier = TierId{2}, .capacity_bytes = kSmallBytes, .segment_bytes = kTestSegmentBytes};
}

/// What a script had been told before the power failed.
struct Acknowledged {
  std::set<uint64_t> stored, erasing, erased;
};

/// Stores two dozen blocks, erases every third.
Acknowledged RunScript(const PowerCutMemory& memory, CxlStore& store, BlockIo& io) {
  Acknowledged told;
  TestAllocator allocator;
  if (!store.PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok()) return told;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const ColdRecord record = WriteBlock(store, io, allocator, seed).value();
    if (!store.Commit({&record, 1}, io).ok() || memory.cut()) return told;
    told.stored.insert(seed);
    if (seed % 3 != 0) continue;
    told.erasing.insert(seed);
    if (!store.Erase({&record, 1}, io).ok() || memory.cut()) return told;
    told.erased.insert(seed);
  }
  return told;
}

class CxlPowerCutTest : public testing::TestWithParam<CxlPersistence> {};

TEST_P(CxlPowerCutTest, S45_WhateverStepThePowerFailsAtWhatWasAcknowledgedIsThere) {
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  const uint64_t seed = static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("random seed " + std::to_string(seed));
  uint64_t cut_at = 1;
  for (bool cut = true; cut; ++cut_at) {
    const PowerCutMemory::Stored stored = PowerCutMemory::Blank(kSmallBytes);
    Acknowledged told;
    {
      auto memory = std::make_unique<PowerCutMemory>(stored, GetParam(), cut_at, seed + cut_at);
      const PowerCutMemory& watched = *memory;
      auto store = CxlStore::Make(SmallOptions(), std::move(memory)).value();
      ASSERT_TRUE(store->Recover().ok());
      told = RunScript(watched, *store, *io);
      cut = watched.cut();
    }
    auto store =
        CxlStore::Make(SmallOptions(), std::make_unique<PowerCutMemory>(stored, GetParam(), UINT64_MAX, 1));
    ASSERT_TRUE(store.ok()) << "cut at " << cut_at << ": " << store.status().ToString();
    const ColdRecovery recovery = (*store)->Recover().value();
    std::set<uint64_t> found;
    for (const auto& block : recovery.blocks) {
      const uint64_t number = block.identity.first_position / 64;
      found.insert(number);
      const Status sound = CheckBlock(**store, *io, block, number);
      EXPECT_TRUE(sound.ok()) << "cut at " << cut_at << ", block " << number << ": " << sound.ToString();
    }
    for (const uint64_t number : told.stored) {
      if (told.erasing.contains(number)) continue;
      EXPECT_TRUE(found.contains(number)) << "cut at " << cut_at << ": block " << number << " is lost";
    }
    for (const uint64_t number : told.erased) {
      EXPECT_FALSE(found.contains(number)) << "cut at " << cut_at << ": block " << number << " is back";
    }
  }
  EXPECT_GT(cut_at, 100u);
}
INSTANTIATE_TEST_SUITE_P(Persistence, CxlPowerCutTest,
                         testing::Values(CxlPersistence::kByte, CxlPersistence::kCacheLine,
                                         CxlPersistence::kPage));

class CxlStoreTest : public ColdStoreTest {
 protected:
  Result<std::unique_ptr<ColdStore>> MakeStore(const std::string& path) override {
    return MakeCxlStore(path);
  }
  std::string FilePath() const { return folder_.path() + "/" + std::string(kCxlFileName); }
  /// Flips a bit of the file while no store has it, and starts one.
  void Damage(uint64_t offset, int bit) {
    store_.reset();
    FlipBit(FilePath(), offset, bit);
    recovery_ = OpenStore(folder_.path());
  }
  Result<std::unique_ptr<ColdStore>> WithCapacity(uint64_t bytes) {
    store_.reset();
    CxlStoreOptions options = TestCxlOptions();
    options.capacity_bytes = bytes;
    KVTIER_ASSIGN(std::unique_ptr<CxlMapping> mapping,
                  MapForCxlStore(options, CxlFileTarget(folder_.path())));
    KVTIER_ASSIGN(std::unique_ptr<CxlStore> store, CxlStore::Make(options, std::move(mapping)));
    return std::unique_ptr<ColdStore>(std::move(store));
  }
};

TEST_F(CxlStoreTest, AReadReturnsTheStoredBytesThemselves) {
  const ColdRecord record = Store(1);
  AlignedBuffer bounce;
  const auto first = store_->Read(record.place, *io_, bounce);
  const auto second = store_->Read(record.place, *io_, bounce);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->data(), second->data());
  EXPECT_TRUE(bounce.span().empty());
}

TEST_F(CxlStoreTest, S44_ADamagedSuperblockIsReadFromItsCopy) {
  for (uint64_t seed = 1; seed <= 3; ++seed) Store(seed);
  for (uint64_t at = 0; at < sizeof(CxlSuperblock); at += 7) {
    for (const uint64_t copy : {0, 4096}) {
      Damage(copy + at, static_cast<int>(at % 8));
      ASSERT_EQ(recovery_.blocks.size(), 3u) << copy + at;
    }
  }
}

TEST_F(CxlStoreTest, S44_WithBothSuperblocksDamagedItDoesNotStartAndChangesNothing) {
  Store(1);
  store_.reset();
  FlipBit(FilePath(), 100);
  FlipBit(FilePath(), 4096 + 100);
  EXPECT_EQ(MakeStore(folder_.path()).status().code(), Code::kDataLoss);
  FlipBit(FilePath(), 100);
  recovery_ = OpenStore(folder_.path());
  EXPECT_NE(Recovered(1), nullptr);
}

TEST_F(CxlStoreTest, S44_ADamagedSegmentHeaderIsMadeAgainFromTheRecords) {
  for (uint64_t seed = 1; seed <= 3; ++seed) Store(seed);
  for (const uint64_t at : {0, 4, 8, 16, 24, 32, 48, 4092}) {
    Damage(kCxlMetaBytes + at, 3);
    EXPECT_EQ(recovery_.damaged_headers, 1u) << at;
    ASSERT_EQ(recovery_.blocks.size(), 3u) << at;
  }
  Reopen();
  EXPECT_EQ(recovery_.damaged_headers, 0u);
}

TEST_F(CxlStoreTest, S44_ADamagedRecordIsOneBlockLessAfterACrash) {
  const ColdRecord record = Store(1);
  Store(2);
  for (const uint64_t at :
       {uint64_t{0}, uint64_t{80}, uint64_t{255}, kColdRecordHeaderBytes,
        kColdRecordHeaderBytes + record.image_bytes / 2, kColdRecordHeaderBytes + record.image_bytes - 1}) {
    FlipBit(FilePath(), kCxlMetaBytes + record.place.offset + at);
    CrashAndReopen();
    EXPECT_EQ(Recovered(1), nullptr) << at;
    EXPECT_NE(Recovered(2), nullptr) << at;
    store_.reset();
    recovery_ = OpenStore(folder_.path());
    FlipBit(FilePath(), kCxlMetaBytes + record.place.offset + at);
  }
}

TEST_F(CxlStoreTest, S44_ADamagedModelIsDroppedAndTheOthersAreKept) {
  const NamespaceDigest other = DigestOf<NamespaceDigest>(8), third = DigestOf<NamespaceDigest>(9);
  ASSERT_TRUE(store_->PutModel({.name_space = other, .fields = std::string(200, 'x')}).ok());
  ASSERT_TRUE(store_->PutModel({.name_space = third, .fields = "third"}).ok());
  Reopen();
  ASSERT_EQ(recovery_.models.size(), 3u);
  store_.reset();
  const std::string whole = folder_.path() + "/whole";
  fs::copy_file(FilePath(), whole);
  // The second entry: behind one of 64 + 6 bytes, on the next multiple of 64.
  for (const uint64_t at : {0, 4, 8, 20, 50, 64, 263}) {
    Damage(kCxlModelsOffset + 128 + at, 2);
    EXPECT_EQ(recovery_.models.size(), 2u) << at;
    EXPECT_EQ(recovery_.dropped_records, 1u) << at;
    Reopen();
    EXPECT_EQ(recovery_.models.size(), 2u) << at;
    EXPECT_EQ(recovery_.dropped_records, 0u) << at << ": told once";
    store_.reset();
    fs::copy_file(whole, FilePath(), fs::copy_options::overwrite_existing);
  }
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.models.size(), 3u);
}

TEST_F(CxlStoreTest, ModelsEndWhereTheirAreaDoes) {
  Status status;
  uint64_t count = 0;
  for (; status.ok() && count < 100'000; ++count) {
    status = store_->PutModel(
        {.name_space = DigestOf<NamespaceDigest>(100 + count), .fields = std::string(4000, 'x')});
  }
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  const ColdRecord record = Store(1);
  EXPECT_TRUE(CheckBlock(*store_, *io_, record, 1).ok());
  Reopen();
  EXPECT_EQ(recovery_.models.size(), count);  // all but the last, and the fixture's
  EXPECT_TRUE(store_->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok()) << "it is there";
}

TEST_F(CxlStoreTest, S44_EmptyTruncatedAndForeignFilesNeverAbort) {
  for (uint64_t seed = 1; seed <= 30; ++seed) Store(seed);
  const uint64_t full = fs::file_size(FilePath());
  for (const uint64_t bytes : {full - 4096, kCxlMetaBytes + kTestSegmentBytes + 5000, kCxlMetaBytes + 100,
                               kCxlModelsOffset + 10, uint64_t{5000}, uint64_t{100}}) {
    store_.reset();
    fs::resize_file(FilePath(), bytes);
    const Result<std::unique_ptr<ColdStore>> store = MakeStore(folder_.path());
    if (!store.ok()) {  // the superblock was cut
      EXPECT_LT(bytes, sizeof(CxlSuperblock));
      EXPECT_EQ(store.status().code(), Code::kFailedPrecondition);
      continue;
    }
    const Result<ColdRecovery> recovery = (*store)->Recover();
    ASSERT_TRUE(recovery.ok()) << bytes;
    for (const auto& block : recovery->blocks) {
      const Status sound = CheckBlock(**store, *io_, block, block.identity.first_position / 64);
      EXPECT_TRUE(sound.ok() || sound.code() == Code::kDataLoss) << bytes << ": " << sound.ToString();
    }
  }
  store_.reset();
  fs::remove(FilePath());
  std::ofstream(FilePath()) << std::string(300'000, 'z');
  EXPECT_EQ(MakeStore(folder_.path()).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(fs::file_size(FilePath()), 300'000u);
  fs::resize_file(FilePath(), 0);
  EXPECT_TRUE(MakeStore(folder_.path()).ok());
}

TEST_F(CxlStoreTest, S44_RandomFlipsNeverGiveWrongBytes) {
  for (uint64_t seed = 1; seed <= 40; ++seed) Store(seed);
  const uint64_t used = kCxlMetaBytes + 6 * kTestSegmentBytes;
  const uint64_t seed = static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("random seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  store_.reset();
  for (int flip = 0; flip < 48; ++flip) {
    FlipBit(FilePath(), kCxlModelsOffset + random() % (used - kCxlModelsOffset),
            static_cast<int>(random() % 8));
  }
  recovery_ = OpenStore(folder_.path());
  for (const auto& block : recovery_.blocks) {
    const Status sound = CheckBlock(*store_, *io_, block, block.identity.first_position / 64);
    EXPECT_NE(sound.code(), Code::kInternal) << sound.ToString();
  }
}

TEST_F(CxlStoreTest, AnotherSegmentSizeIsRefused) {
  store_.reset();
  CxlStoreOptions options = TestCxlOptions();
  options.segment_bytes *= 2;
  EXPECT_EQ(MapForCxlStore(options, CxlFileTarget(folder_.path())).status().code(),
            Code::kFailedPrecondition);
  recovery_ = OpenStore(folder_.path());
}

TEST_F(CxlStoreTest, S41_ASmallerCapacityForgetsWhatDoesNotFitAndALargerOneDoesNotBringItBack) {
  for (uint64_t seed = 1; seed <= 60; ++seed) Store(seed);
  {
    auto smaller = WithCapacity(kCxlMetaBytes + 2 * kTestSegmentBytes).value();
    const ColdRecovery recovery = smaller->Recover().value();
    EXPECT_EQ(recovery.segments.size(), 2u);
    EXPECT_GT(recovery.blocks.size(), 0u);
    EXPECT_LT(recovery.blocks.size(), 60u);
  }
  auto larger = WithCapacity(kTestCapacityBytes).value();
  EXPECT_EQ(larger->Recover().value().segments.size(), 2u);
}

/// A device has no holes to give segments back to.
TEST_F(CxlStoreTest, S41_WhatASegmentHeldThatWasGivenUpDoesNotComeBackWithItsNextUse) {
  for (uint64_t seed = 1; seed <= 60; ++seed) Store(seed);
  store_.reset();
  const auto on_device = [&](uint64_t bytes) {
    CxlStoreOptions options = TestCxlOptions();
    options.capacity_bytes = bytes;
    auto mapping =
        MapForCxlStore(options, {.kind = CxlKind::kDevDax, .path = FilePath(), .device_keeps_data = true});
    return CxlStore::Make(options, std::move(mapping).value()).value();
  };
  const size_t kept = on_device(kCxlMetaBytes + 2 * kTestSegmentBytes)->Recover().value().blocks.size();
  {
    const auto larger = on_device(kTestCapacityBytes);
    TestAllocator allocator;
    allocator.ContinueAfter(larger->Recover().value());
    const ColdRecord record = WriteBlock(*larger, *io_, allocator, 100).value();
    EXPECT_EQ(record.place.container, 2u) << "one that was given up";
    ASSERT_TRUE(larger->Commit({&record, 1}, *io_).ok());
  }
  EXPECT_EQ(on_device(kTestCapacityBytes)->Recover().value().blocks.size(), kept + 1);
}

TEST_F(CxlStoreTest, MemoryThatGoesAwayIsACodeAndTheNextStartChecksEverything) {
  const ColdRecord record = Store(1);
  fs::resize_file(FilePath(), kCxlMetaBytes);
  EXPECT_EQ(CheckBlock(*store_, *io_, record, 1).code(), Code::kDataLoss);
  EXPECT_EQ(WriteBlock(*store_, *io_, allocator_, 2).status().code(), Code::kUnavailable);
  EXPECT_EQ(store_->Commit({&record, 1}, *io_).code(), Code::kUnavailable);
  Reopen();
  EXPECT_TRUE(recovery_.blocks.empty());
}

TEST_F(CxlStoreTest, AStartAfterACleanStopReadsHeadersOnlyAndAfterACrashEveryByte) {
  const ColdRecord record = Store(1);
  store_.reset();
  FlipBit(FilePath(), kCxlMetaBytes + record.place.offset + kColdRecordHeaderBytes + record.image_bytes - 1);
  recovery_ = OpenStore(folder_.path());
  ASSERT_NE(Recovered(1), nullptr) << "its planes are looked at when it is read";
  EXPECT_EQ(recovery_.scanned_records, 0u);
  EXPECT_EQ(CheckBlock(*store_, *io_, *Recovered(1), 1).code(), Code::kDataLoss);
  CrashAndReopen();
  EXPECT_EQ(Recovered(1), nullptr);
  EXPECT_EQ(recovery_.dropped_records, 1u);
}

TEST_F(CxlStoreTest, ABlockWithoutItsModelIsDroppedAndCounted) {
  Store(1);
  Damage(kCxlModelsOffset + 1, 1);
  EXPECT_TRUE(recovery_.blocks.empty());
  EXPECT_EQ(recovery_.unknown_model_blocks, 1u);
}

}  // namespace
}  // namespace kvtier
