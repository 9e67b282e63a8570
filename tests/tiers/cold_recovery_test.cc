#include "tiers/cold_recovery.h"

#include <gmock/gmock.h>

#include <cstring>

#include "tests/support/faulty_block_io.h"
#include "tests/tiers/cold_fixture.h"

namespace kvtier {
namespace {

using Op = IoRequest::Op;
namespace fs = std::filesystem;

class ColdRecoveryTest : public ColdStoreTest {
 protected:
  /// Writes bytes at an offset of a file, past every check.
  static void Overwrite(const std::string& path, uint64_t offset, std::string_view bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    KVTIER_CHECK(file.good());
  }
  /// Puts segment 0 of another store, with block 50, among the segments of this one, which is closed.
  void CopyForeignSegment(uint32_t number) {
    TempFolder other;
    store_.reset();
    OpenStore(other.path());
    allocator_ = TestAllocator();
    Store(50);
    store_.reset();
    fs::copy_file(other.path() + "/segments/00000000.seg", SegmentPath(number));
  }
};

TEST_F(ColdRecoveryTest, EverythingIsBackByTheScanWhenTheIndexIsDeleted) {
  StoreMany(60);
  ASSERT_TRUE(store_->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok());
  LoseIndex();
  EXPECT_EQ(recovery_.blocks.size(), 60u);
  EXPECT_EQ(recovery_.scanned_records, 60u);
  EXPECT_EQ(recovery_.dropped_records, 0u);
  EXPECT_EQ(recovery_.models.size(), 1u);
  ExpectBack(1, 60);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const ColdRecord* found = Recovered(seed);
    EXPECT_EQ(found->place, stored_[seed - 1].place);
    EXPECT_EQ(found->identity, stored_[seed - 1].identity);
    EXPECT_EQ(found->meta.parent, stored_[seed - 1].meta.parent);
    EXPECT_EQ(found->meta.floor, stored_[seed - 1].meta.floor);
    EXPECT_EQ(found->meta.is_tail, stored_[seed - 1].meta.is_tail);
  }
  // The scan filled the index: the next start needs no other.
  Reopen();
  EXPECT_EQ(recovery_.blocks.size(), 60u);
  EXPECT_EQ(recovery_.scanned_records, 0u);
}

TEST_F(ColdRecoveryTest, ABrokenIndexIsMovedAsideAndRebuilt) {
  StoreMany(30);
  store_.reset();
  for (const auto& entry : fs::directory_iterator(folder_.path() + "/index")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("MANIFEST") || name == "CURRENT")
      Overwrite(entry.path().string(), 0, "garbage!garbage!");
  }
  recovery_ = OpenStore(folder_.path());
  ExpectBack(1, 30);
  EXPECT_TRUE(recovery_.index_rebuilt);
  EXPECT_TRUE(fs::exists(folder_.path() + "/index.broken"));
  store_.reset();
  Overwrite(folder_.path() + "/index/CURRENT", 0, "garbage!garbage!");
  recovery_ = OpenStore(folder_.path());
  ExpectBack(1, 30);
}

TEST_F(ColdRecoveryTest, RecordsThatTheIndexLagsBehindAreFound) {
  StoreMany(10);
  Write(11);
  Write(12);
  CrashAndReopen();
  EXPECT_EQ(recovery_.blocks.size(), 12u);
  EXPECT_EQ(recovery_.scanned_records, 2u);
  ExpectBack(1, 12);
}

TEST_F(ColdRecoveryTest, RecordsBehindAHoleAreFound) {
  StoreMany(3);
  allocator_.Next(20'000);  // handed out, never written
  Store(4);
  allocator_.Next(20'000);
  Write(5);
  CrashAndReopen();
  EXPECT_EQ(recovery_.blocks.size(), 5u);
  ExpectBack(1, 5);
  store_.reset();
  std::filesystem::remove_all(crashed_->path() + "/index");
  recovery_ = OpenStore(crashed_->path());
  EXPECT_EQ(recovery_.blocks.size(), 5u);
  ExpectBack(1, 5);
}

TEST_F(ColdRecoveryTest, ARemovedBlockIsNotBackAfterACrash) {
  StoreMany(10);
  const ColdRecord uncommitted = Write(11);
  const ColdRecord gone[] = {stored_[3], uncommitted, stored_[9]};
  ASSERT_TRUE(store_->Erase(gone, *io_).ok());
  CrashAndReopen();
  for (uint64_t seed : {4, 10, 11}) EXPECT_EQ(Recovered(seed), nullptr) << seed;
  EXPECT_EQ(recovery_.blocks.size(), 8u);
  LoseIndex();
  for (uint64_t seed : {4, 10, 11}) EXPECT_EQ(Recovered(seed), nullptr) << seed;
  EXPECT_EQ(recovery_.blocks.size(), 8u);
}

TEST_F(ColdRecoveryTest, OfTwoRecordsOfOneBlockTheNewerIsTakenAndTheOlderNeverComesBack) {
  Write(1);
  StoreMany(3);  // block 1 again
  LoseIndex();
  EXPECT_EQ(recovery_.blocks.size(), 3u);
  ASSERT_NE(Recovered(1), nullptr);
  const ColdRecord newer = *Recovered(1);
  EXPECT_EQ(newer.place, stored_[0].place);
  ASSERT_TRUE(store_->Erase({&newer, 1}, *io_).ok());
  LoseIndex();
  EXPECT_EQ(Recovered(1), nullptr);
}

TEST_F(ColdRecoveryTest, S43_ACorruptImageIsSkippedByTheScanAndCounted) {
  StoreMany(10);
  store_.reset();
  FlipBit(SegmentPath(0), stored_[4].place.offset + kColdRecordHeaderBytes + 1000);
  fs::remove_all(folder_.path() + "/index");
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.dropped_records, 1u);
  EXPECT_EQ(recovery_.blocks.size(), 9u);
  EXPECT_EQ(Recovered(5), nullptr);
  ExpectBack(6, 10);
}

TEST_F(ColdRecoveryTest, S44_ADamagedRecordHeaderCostsThatRecordOnly) {
  StoreMany(10);
  store_.reset();
  FlipBit(SegmentPath(0), stored_[4].place.offset + 80);
  fs::remove_all(folder_.path() + "/index");
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(Recovered(5), nullptr);
  EXPECT_EQ(recovery_.blocks.size(), 9u);
  ExpectBack(6, 10);
}

TEST_F(ColdRecoveryTest, S44_ADamagedSegmentHeaderIsRepairedFromTheIndex) {
  StoreMany(10);
  store_.reset();
  FlipBit(SegmentPath(0), 17);
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.damaged_headers, 1u);
  EXPECT_FALSE(recovery_.index_rebuilt);
  EXPECT_EQ(recovery_.blocks.size(), 10u);
  ExpectBack(1, 10);
  Reopen();
  ExpectBack(1, 10);
}

TEST_F(ColdRecoveryTest, S44_ADamagedSegmentHeaderWithoutIndexMakesAFullSegmentToRecycle) {
  StoreMany(10);
  store_.reset();
  FlipBit(SegmentPath(0), 17);
  fs::remove_all(folder_.path() + "/index");
  recovery_ = OpenStore(folder_.path());
  EXPECT_TRUE(recovery_.blocks.empty());
  ASSERT_EQ(recovery_.segments.size(), 1u);
  EXPECT_EQ(recovery_.segments[0].sequence, 0u);
  EXPECT_EQ(recovery_.segments[0].used_bytes, kTestSegmentBytes);
  // Even under the sequence that it happened to have, nothing of it comes back.
  EXPECT_TRUE(store_->RecycleSegment(0, 1, *io_).ok());
  LoseIndex();
  EXPECT_TRUE(recovery_.blocks.empty());
  ASSERT_EQ(recovery_.segments.size(), 1u);
  EXPECT_EQ(recovery_.segments[0].sequence, 1u);
  EXPECT_EQ(recovery_.segments[0].used_bytes, kColdSegmentHeaderBytes);
}

TEST_F(ColdRecoveryTest, S41_ASmallerCapacityRemovesTheSegmentsAboveIt) {
  StoreMany(60);
  store_.reset();
  ColdStoreOptions options = TestColdOptions(folder_.path());
  options.capacity_bytes = 3 * kTestSegmentBytes;
  ASSERT_EQ(ColdSegmentLimit(options.capacity_bytes, options.segment_bytes), 2u);
  store_ = ColdStore::Make(options).value();
  recovery_ = store_->Recover().value();
  EXPECT_EQ(recovery_.segments.size(), 2u);
  EXPECT_EQ(recovery_.blocks.size() + recovery_.dropped_records, 60u);
  EXPECT_EQ(recovery_.beyond_capacity_records, recovery_.dropped_records) << "none is damaged";
  for (const ColdRecord& block : recovery_.blocks) EXPECT_LT(block.place.container, 2u);
  EXPECT_LE(store_->allocated_bytes(), options.capacity_bytes);
  EXPECT_FALSE(fs::exists(SegmentPath(2)));
}

TEST_F(ColdRecoveryTest, S44_ADamagedIndexEntryIsCountedAndTheBlockIsFoundByTheScan) {
  StoreMany(10);
  store_.reset();
  {
    // The entry's own checksum is the last line: RocksDB's would stop a flipped bit on disk before it.
    auto index = ColdIndex::Open({.folder = folder_.path() + "/index", .reserve_bytes = 1 << 20}).value();
    ColdRecord wrong = stored_[2];
    wrong.place.epoch += 1;  // sound, but of another use
    ASSERT_TRUE(index->Put({&wrong, 1}).ok());
  }
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.dropped_records, 1u);
  EXPECT_EQ(recovery_.scanned_records, 1u);
  ExpectBack(1, 10);
}

TEST_F(ColdRecoveryTest, S44_AFlippedBitInTheIndexFilesLosesNothing) {
  StoreMany(40);
  store_.reset();
  uint64_t flipped = 0;
  for (const auto& entry : fs::directory_iterator(folder_.path() + "/index")) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".sst" && extension != ".log") continue;
    if (fs::file_size(entry.path()) < 100) continue;
    FlipBit(entry.path().string(), fs::file_size(entry.path()) / 3, 3);
    ++flipped;
  }
  ASSERT_GT(flipped, 0u);
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.blocks.size(), 40u);
  ExpectBack(1, 40);
}

TEST_F(ColdRecoveryTest, S44_ATruncatedSegmentLosesItsTailOnlyAndCanBeRecycled) {
  StoreMany(10);
  store_.reset();
  fs::resize_file(SegmentPath(0), stored_[6].place.offset + 5000);
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.blocks.size(), 6u);
  EXPECT_EQ(recovery_.dropped_records, 4u);
  ExpectBack(1, 6);
  // Its size and its space are back before anything is written behind the cut.
  EXPECT_EQ(fs::file_size(SegmentPath(0)), kTestSegmentBytes);
  ASSERT_TRUE(store_->RecycleSegment(0, 9, *io_).ok());
  EXPECT_EQ(fs::file_size(SegmentPath(0)), kTestSegmentBytes);
}

TEST_F(ColdRecoveryTest, S44_AnEmptySegmentFileIsAFullSegmentWithoutBlocks) {
  StoreMany(40);
  const uint32_t segments = stored_.back().place.container + 1;
  store_.reset();
  fs::resize_file(SegmentPath(1), 0);
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.segments.size(), segments);
  EXPECT_GT(recovery_.dropped_records, 0u);
  for (const ColdRecord& block : recovery_.blocks) EXPECT_NE(block.place.container, 1u);
  EXPECT_GT(recovery_.blocks.size(), 20u);
  EXPECT_TRUE(store_->RecycleSegment(1, 99, *io_).ok());
}

TEST_F(ColdRecoveryTest, S44_ASegmentOfAnotherStoreIsSetAside) {
  StoreMany(3);
  CopyForeignSegment(7);
  std::ofstream(SegmentPath(7) + ".foreign") << "set aside before";
  std::ofstream(folder_.path() + "/segments/readme.txt") << "not a segment";
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.segments.size(), 1u);
  EXPECT_EQ(Recovered(50), nullptr);
  ExpectBack(1, 3);
  EXPECT_EQ(recovery_.foreign_files, 1u);
  EXPECT_EQ(fs::file_size(SegmentPath(7) + ".foreign"), 16u);
  EXPECT_EQ(fs::file_size(SegmentPath(7) + ".foreign-2"), kTestSegmentBytes);
  EXPECT_TRUE(fs::exists(folder_.path() + "/segments/readme.txt"));
}

TEST_F(ColdRecoveryTest, S44_ASegmentOfAnotherStoreIsSetAsideAsItIs) {
  CopyForeignSegment(7);
  fs::resize_file(SegmentPath(7), kTestSegmentBytes / 2);
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.foreign_files, 1u);
  EXPECT_EQ(fs::file_size(SegmentPath(7) + ".foreign"), kTestSegmentBytes / 2);
}

TEST_F(ColdRecoveryTest, WhatIsSetAsideCountsForTheCapacity) {
  StoreMany(3);
  store_.reset();
  fs::copy_file(SegmentPath(0), SegmentPath(7));  // another number in its header
  recovery_ = OpenStore(folder_.path());
  ASSERT_EQ(recovery_.foreign_files, 1u);
  const uint64_t reserve = ColdIndexReserveBytes(kTestCapacityBytes);
  EXPECT_EQ(store_->allocated_bytes(), 2 * kTestSegmentBytes + reserve);
  const uint32_t limit = ColdSegmentLimit(kTestCapacityBytes, kTestSegmentBytes);
  Status status;
  for (uint64_t seed = 100; status.ok() && seed < 100 + limit; ++seed) {
    allocator_.SealSegment();
    status = WriteBlock(*store_, *io_, allocator_, seed).status();
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  const fs::directory_iterator files(folder_.path() + "/segments");
  EXPECT_EQ(std::distance(begin(files), end(files)), limit);
  EXPECT_EQ(store_->allocated_bytes(), limit * kTestSegmentBytes + reserve);
}

TEST_F(ColdRecoveryTest, FilesOfModelsStayInsideTheReserve) {
  const uint32_t limit = ColdModelLimit(kTestCapacityBytes);
  const auto model = [](uint32_t number) {
    return ModelRecord{.name_space = DigestOf<NamespaceDigest>(number), .fields = "fields"};
  };
  for (uint32_t i = 2; i <= limit; ++i) ASSERT_TRUE(store_->PutModel(model(1000 + i)).ok()) << i;
  EXPECT_EQ(store_->PutModel(model(1)).code(), Code::kOutOfRange);
  EXPECT_TRUE(store_->PutModel(model(1002)).ok()) << "it is there";
  EXPECT_LT(limit * kColdModelFileBytes, ColdIndexReserveBytes(kTestCapacityBytes));
}

TEST_F(ColdRecoveryTest, S44_BlocksWhoseModelFileIsGoneOrDamagedAreDropped) {
  StoreMany(5);
  store_.reset();
  const std::string model = folder_.path() + "/models/" + TestNamespace().ToHex() + ".model";
  const std::string kept = folder_.path() + "/kept";
  ASSERT_TRUE(fs::copy_file(model, kept));
  FlipBit(model, fs::file_size(model) - 1);
  recovery_ = OpenStore(folder_.path());
  EXPECT_TRUE(recovery_.blocks.empty());
  EXPECT_EQ(recovery_.unknown_model_blocks, 5u);
  EXPECT_EQ(recovery_.dropped_records, 6u);  // and the model
  store_.reset();
  fs::remove(model);
  recovery_ = OpenStore(folder_.path());
  EXPECT_TRUE(recovery_.blocks.empty());
  EXPECT_EQ(recovery_.dropped_records, 5u);
  store_.reset();
  fs::copy_file(kept, model);
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.dropped_records, 0u);
  ExpectBack(1, 5);
}

TEST_F(ColdRecoveryTest, AHalfMadeModelFileIsRemoved) {
  StoreMany(2);
  store_.reset();
  const std::string half = folder_.path() + "/models/" + TestNamespace().ToHex() + ".model.new";
  std::ofstream(half) << "half";
  recovery_ = OpenStore(folder_.path());
  EXPECT_FALSE(fs::exists(half));
  ExpectBack(1, 2);
}

TEST_F(ColdRecoveryTest, AHalfMadeSegmentIsRemoved) {
  StoreMany(2);
  store_.reset();
  std::ofstream(folder_.path() + "/segments/00000001.seg.new") << "half";
  recovery_ = OpenStore(folder_.path());
  EXPECT_FALSE(fs::exists(folder_.path() + "/segments/00000001.seg.new"));
  ExpectBack(1, 2);
}

TEST_F(ColdRecoveryTest, ADeletedSegmentDropsItsBlocks) {
  StoreMany(40);
  store_.reset();
  fs::remove(SegmentPath(0));
  recovery_ = OpenStore(folder_.path());
  EXPECT_GT(recovery_.dropped_records, 0u);
  for (const ColdRecord& block : recovery_.blocks) EXPECT_NE(block.place.container, 0u);
}

/// A client chooses the bytes of its blocks. A record that it spells out inside one must not be taken for a
/// block of somebody else when the scan looks for the next header: it does not know the store's uuid.
TEST_F(ColdRecoveryTest, ARecordForgedInsideABlockIsNotFound) {
  const TestBlock block = MakeTestBlock(2);
  const std::vector<std::byte> image = ImageOf(block);
  const ColdRecord outer = Store(2);
  ColdRecord forged = outer;
  forged.identity.key = KeyOf(99);
  forged.place.offset += kSlotAlign;
  forged.place.bytes = kSlotAlign;
  forged.image_bytes = 100;
  store_.reset();
  for (const bool knows_uuid : {false, true}) {
    SegmentHeader segment;
    std::ifstream(SegmentPath(0), std::ios::binary).read(reinterpret_cast<char*>(&segment), sizeof(segment));
    const StoreUuid uuid = knows_uuid ? segment.uuid : StoreUuid{};
    const RecordHeader header = MakeRecordHeader(uuid, forged, RecordState::kLive);
    Overwrite(SegmentPath(0), forged.place.offset, {reinterpret_cast<const char*>(&header), sizeof(header)});
    if (!knows_uuid) FlipBit(SegmentPath(0), outer.place.offset + 10);  // the scan has to look on
    fs::remove_all(folder_.path() + "/index");
    recovery_ = OpenStore(folder_.path());
    store_.reset();
    // With the uuid the scan does stop there (and the image fails): so this test would see a forged header.
    EXPECT_EQ(recovery_.dropped_records, knows_uuid ? 1u : 0u);
    EXPECT_TRUE(recovery_.blocks.empty());
  }
}

TEST_F(ColdRecoveryTest, ThousandsOfBlocksComeBackInOneGo) {
  ColdStoreOptions options = TestColdOptions(folder_.path() + "/large");
  ASSERT_TRUE(fs::create_directory(options.path));
  store_.reset();
  {
    ASSERT_TRUE(ColdStore::Make(options).ok());
    auto index = ColdIndex::Open({.folder = options.path + "/index", .reserve_bytes = 1 << 20}).value();
    std::vector<ColdRecord> batch;
    for (uint64_t i = 0; i < 20'000; ++i) {
      ColdRecord record;
      record.identity.key = KeyOf(i);
      record.place.container = static_cast<uint32_t>(i / 60);
      record.place.offset = kColdSegmentHeaderBytes * (1 + i % 60);
      record.place.bytes = kSlotAlign;
      record.place.epoch = 1;
      batch.push_back(record);
      if (batch.size() < 1000) continue;
      ASSERT_TRUE(index->Put(batch).ok());
      batch.clear();
    }
    uint64_t count = 0;
    ASSERT_TRUE(index->Load([&](ColdRecord&&) { ++count; }).ok());
    EXPECT_EQ(count, 20'000u);
    ASSERT_TRUE(index->MarkClean().ok());
  }
  // None of their segments exists: all are dropped, and stay so.
  store_ = ColdStore::Make(options).value();
  EXPECT_EQ(store_->Recover().value().dropped_records, 20'000u);
  store_.reset();
  store_ = ColdStore::Make(options).value();
  EXPECT_EQ(store_->Recover().value().dropped_records, 0u);
}

}  // namespace
}  // namespace kvtier
