#include "tiers/cold_store.h"

#include <gmock/gmock.h>
#include <sys/mount.h>

#include <iostream>

#include "tests/support/faulty_block_io.h"
#include "tests/tiers/cold_fixture.h"
#include "tiers/cold_index.h"

namespace kvtier {
namespace {

using Op = IoRequest::Op;
namespace fs = std::filesystem;

TEST_F(ColdStoreTest, S01_AFailedWriteIsAnErrorAndLeavesNothing) {
  for (const bool shortened : {false, true}) {
    FaultyBlockIo faulty(*io_);
    Store(1);  // the segment exists: the next write is the record
    if (shortened) {
      faulty.ShortenNth(Op::kWrite, 1, 4096);
    } else {
      faulty.FailNth(Op::kWrite, 1, StatusFromErrno(EIO, "write"));
    }
    const Result<ColdRecord> record = WriteBlock(*store_, faulty, allocator_, 2);
    EXPECT_EQ(record.status().code(), Code::kUnavailable);
    CrashAndReopen();
    EXPECT_NE(Recovered(1), nullptr);
    EXPECT_EQ(Recovered(2), nullptr);
    store_.reset();
    OpenStore(folder_.path());
  }
}

TEST_F(ColdStoreTest, S42_AFullDiskIsACodeAndTheStoreRecoversWhenSpaceReturns) {
  FaultyBlockIo faulty(*io_);
  faulty.FailFrom(Op::kWrite, 1, StatusFromErrno(ENOSPC, "write"));
  EXPECT_EQ(WriteBlock(*store_, faulty, allocator_, 1).status().code(), Code::kResourceExhausted);
  EXPECT_FALSE(fs::exists(SegmentPath(0)));
  EXPECT_TRUE(fs::is_empty(folder_.path() + "/segments"));
  faulty.Heal();
  const Result<ColdRecord> record = WriteBlock(*store_, faulty, allocator_, 1);
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  ASSERT_TRUE(store_->Commit({&*record, 1}, faulty).ok());
  EXPECT_TRUE(CheckBlock(*store_, *io_, *record, 1).ok());
}

TEST_F(ColdStoreTest, ABlockWhoseSyncFailedIsNotIndexed) {
  const ColdRecord record = Write(1);
  FaultyBlockIo faulty(*io_);
  faulty.FailNth(Op::kDataSync, 1, StatusFromErrno(EIO, "fdatasync"));
  EXPECT_EQ(store_->Commit({&record, 1}, faulty).code(), Code::kUnavailable);
  Reopen();
  EXPECT_EQ(Recovered(1), nullptr);
}

TEST_F(ColdStoreTest, S47_AfterAFailedSyncNothingElseOfThatUseIsCommitted) {
  // A failed sync may have dropped all that was written; the kernel says so once.
  const ColdRecord first = Write(1), second = Write(2);
  ASSERT_EQ(first.place.container, second.place.container);
  FaultyBlockIo faulty(*io_);
  faulty.FailNth(Op::kDataSync, 1, StatusFromErrno(EIO, "fdatasync"));
  EXPECT_FALSE(store_->Commit({&first, 1}, faulty).ok());
  EXPECT_EQ(store_->Commit({&second, 1}, faulty).code(), Code::kUnavailable);
  // Its next use is another matter.
  ASSERT_TRUE(store_->RecycleSegment(first.place.container, first.place.epoch + 50, *io_).ok());
  ColdRecord again = second;
  again.place.epoch += 50;
  const std::vector<std::byte> image = ImageOf(MakeTestBlock(2));
  AlignedBuffer bounce;
  const std::span<std::byte> built = store_->BeginWrite(again.place, bounce).value();
  std::copy(image.begin(), image.end(), built.begin());
  ASSERT_TRUE(store_->FinishWrite(again.place, *io_, built, image.size(), again.meta).ok());
  EXPECT_TRUE(store_->Commit({&again, 1}, *io_).ok());
  EXPECT_TRUE(CheckBlock(*store_, *io_, again, 2).ok());
}

TEST_F(ColdStoreTest, AnIndexDamagedWhileItIsOpenIsBegunAnewAndTheNextStartScans) {
  std::vector<ColdRecord> records;
  for (uint64_t seed = 1; seed <= 40; ++seed) records.push_back(Store(seed));
  Reopen();  // what the index holds is in its table files now
  for (const auto& file : fs::directory_iterator(folder_.path() + "/index")) {
    if (file.path().extension() != ".sst") continue;
    for (uint64_t at = 0; at < fs::file_size(file); at += 64) FlipBit(file.path(), at);
  }
  // Reads the index, finds it damaged, goes on.
  EXPECT_TRUE(store_->Erase({&records[0], 1}, *io_).ok());
  EXPECT_TRUE(store_->RecycleSegment(99'999, 1'000'000, *io_).code() == Code::kNotFound);
  const ColdRecord fresh = Store(100);
  EXPECT_TRUE(CheckBlock(*store_, *io_, fresh, 100).ok());
  Reopen();
  EXPECT_EQ(Recovered(1), nullptr);
  for (uint64_t seed = 2; seed <= 40; ++seed) EXPECT_NE(Recovered(seed), nullptr) << seed;
  EXPECT_NE(Recovered(100), nullptr);
}

TEST_F(ColdStoreTest, SeveralBlocksAreOneSubmissionEachWayAndOneThatFailsCostsItselfAlone) {
  Store(100);  // the segment exists: the next writes are the records
  FaultyBlockIo faulty(*io_);
  faulty.FailNth(Op::kWrite, 3, StatusFromErrno(EIO, "write"));
  faulty.FailNth(Op::kRead, 2, StatusFromErrno(EIO, "read"));
  constexpr uint64_t kBlocks = 5;
  AlignedBuffer bounces[kBlocks];
  std::vector<Medium::PartWrite> writes;
  for (uint64_t seed = 1; seed <= kBlocks; ++seed) {
    const TestBlock block = MakeTestBlock(seed);
    const std::vector<std::byte> image = ImageOf(block);
    const Place place = allocator_.Next(image.size());
    const std::span<std::byte> built = store_->BeginWrite(place, bounces[seed - 1]).value();
    std::copy(image.begin(), image.end(), built.begin());
    writes.push_back({.place = place, .built = built, .image_bytes = image.size(), .meta = block.meta});
  }
  ASSERT_EQ(writes.front().place.container, writes.back().place.container);
  store_->FinishWrites(writes, faulty);
  EXPECT_EQ(faulty.submissions(), std::vector<size_t>{kBlocks});
  std::vector<Medium::PartRead> reads;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(writes[i].status.code(), i == 2 ? Code::kUnavailable : Code::kOk);
    reads.push_back({.place = writes[i].place, .bounce = &bounces[i]});
  }
  store_->ReadParts(reads, faulty);
  EXPECT_EQ(faulty.submissions(), (std::vector<size_t>{kBlocks, kBlocks}));
  for (uint64_t i : {0, 3, 4}) {
    ASSERT_TRUE(reads[i].bytes.ok()) << i;
    EXPECT_TRUE(VerifyImage(ParseImage(*reads[i].bytes).value()).ok());
  }
  EXPECT_EQ(reads[1].bytes.status().code(), Code::kUnavailable);
  EXPECT_EQ(reads[2].bytes.status().code(), Code::kDataLoss) << "never written";
}

TEST_F(ColdStoreTest, WhatIsWrittenBesideRecordsIsCounted) {
  const uint64_t before = store_->metadata_bytes_written();
  const ColdRecord record = Write(1);
  const uint64_t written = store_->metadata_bytes_written();
  EXPECT_EQ(written, before + kColdSegmentHeaderBytes);
  ASSERT_TRUE(store_->Commit({&record, 1}, *io_).ok());
  const uint64_t committed = store_->metadata_bytes_written();
  EXPECT_GT(committed, written + sizeof(record.identity.key.bytes));
  EXPECT_LT(committed, written + kSlotAlign);
  ASSERT_TRUE(store_->Erase({&record, 1}, *io_).ok());
  const uint64_t erased = store_->metadata_bytes_written();
  EXPECT_GT(erased, committed + kSlotAlign);
  ASSERT_TRUE(store_->RecycleSegment(record.place.container, 100, *io_).ok());
  EXPECT_GE(store_->metadata_bytes_written(), erased + kColdSegmentHeaderBytes);
}

TEST_F(ColdStoreTest, OneCommitSyncsEachSegmentOnce) {
  std::vector<ColdRecord> records;
  for (uint64_t seed = 1; seed <= 30; ++seed) records.push_back(Write(seed));
  const uint32_t segments = records.back().place.container + 1;
  ASSERT_GT(segments, 1u);
  FaultyBlockIo counting(*io_);
  ASSERT_TRUE(store_->Commit(records, counting).ok());
  EXPECT_EQ(counting.count(Op::kDataSync), segments);
}

TEST_F(ColdStoreTest, S49_AReadErrorIsReportedAndTheNextReadWorks) {
  const ColdRecord record = Store(1);
  FaultyBlockIo faulty(*io_);
  faulty.FailNth(Op::kRead, 1, StatusFromErrno(EIO, "read"));
  faulty.ShortenNth(Op::kRead, 2, 4096);
  EXPECT_EQ(CheckBlock(*store_, faulty, record, 1).code(), Code::kUnavailable);
  EXPECT_EQ(CheckBlock(*store_, faulty, record, 1).code(), Code::kUnavailable);
  EXPECT_TRUE(CheckBlock(*store_, faulty, record, 1).ok());
}

/// The record itself says so; other restarts: cold_conformance_test.cc.
TEST_F(ColdStoreTest, AnErasedBlockIsGoneWithoutTheIndexToo) {
  const ColdRecord erased = Store(1);
  Store(2);
  ASSERT_TRUE(store_->Erase({&erased, 1}, *io_).ok());
  LoseIndex();
  EXPECT_EQ(Recovered(1), nullptr);
  EXPECT_NE(Recovered(2), nullptr);
}

TEST_F(ColdStoreTest, AnEraseThatCannotMarkTheRecordSaysSo) {
  const ColdRecord record = Store(1);
  FaultyBlockIo faulty(*io_);
  faulty.FailNth(Op::kWrite, 1, StatusFromErrno(EIO, "write"));
  EXPECT_EQ(store_->Erase({&record, 1}, faulty).code(), Code::kUnavailable);
  Reopen();
  EXPECT_EQ(Recovered(1), nullptr);
}

TEST_F(ColdStoreTest, ARecycledSegmentForgetsItsBlocksForGood) {
  Store(1);
  ColdRecord moved = Store(2);
  ASSERT_TRUE(store_->RecycleSegment(0, 5, *io_).ok());
  // A new use that covers only the first of the old records.
  moved.place.epoch = 5;
  moved.place.offset = kColdSegmentHeaderBytes;
  AlignedBuffer bounce;
  const auto built = store_->BeginWrite(moved.place, bounce);
  const std::vector<std::byte> image = ImageOf(MakeTestBlock(2));
  std::copy(image.begin(), image.end(), built->begin());
  ASSERT_TRUE(store_->FinishWrite(moved.place, *io_, *built, image.size(), moved.meta).ok());
  ASSERT_TRUE(store_->Commit({&moved, 1}, *io_).ok());
  Reopen();
  EXPECT_EQ(recovery_.blocks.size(), 1u);
  LoseIndex();
  EXPECT_EQ(recovery_.blocks.size(), 1u);
  ASSERT_NE(Recovered(2), nullptr);
  EXPECT_EQ(Recovered(2)->place, moved.place);
  EXPECT_EQ(recovery_.segments[0].sequence, 5u);
}

TEST_F(ColdStoreTest, S51_FilesAreSegmentsNotBlocks) {
  for (uint64_t seed = 1; seed <= 200; ++seed) Store(seed);
  const auto files = std::distance(fs::directory_iterator(folder_.path() + "/segments"), {});
  EXPECT_LE(files, 200 * 28 / 256 + 3);
}

TEST_F(ColdStoreTest, S41_SegmentsStopAtTheLimit) {
  const uint32_t limit = ColdSegmentLimit(kTestCapacityBytes, kTestSegmentBytes);
  Status status;
  uint64_t seed = 0;
  while (status.ok() && seed < 10'000) status = WriteBlock(*store_, *io_, allocator_, ++seed).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() + "/segments"), {}), limit);
  EXPECT_LE(store_->allocated_bytes(), kTestCapacityBytes);
}

TEST_F(ColdStoreTest, MoreSegmentsThanDescriptorsAreServed) {
  ColdStoreOptions options = TestColdOptions(folder_.path() + "/many");
  ASSERT_TRUE(fs::create_directory(options.path));
  options.segment_bytes = 64 << 10;
  options.capacity_bytes = uint64_t{32} << 20;
  store_ = ColdStore::Make(options).value();
  ASSERT_TRUE(store_->Recover().ok());
  std::vector<ColdRecord> records;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    ColdRecord record;
    const TestBlock block = MakeTestBlock(seed);
    const std::vector<std::byte> image = ImageOf(block);
    record.identity = block.identity;
    record.meta = block.meta;
    record.codec = CodecId::kRaw16;
    record.image_bytes = image.size();
    record.place.container = static_cast<uint32_t>(seed - 1);
    record.place.offset = kColdSegmentHeaderBytes;
    record.place.bytes = ColdRecordBytes(image.size());
    record.place.epoch = seed;
    AlignedBuffer bounce;
    const auto built = store_->BeginWrite(record.place, bounce);
    std::copy(image.begin(), image.end(), built->begin());
    ASSERT_TRUE(store_->FinishWrite(record.place, *io_, *built, image.size(), record.meta).ok());
    records.push_back(record);
  }
  ASSERT_TRUE(store_->Commit(records, *io_).ok());
  const auto open_files = std::distance(fs::directory_iterator("/proc/self/fd"), {});
  EXPECT_LT(open_files, 300);
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    EXPECT_TRUE(CheckBlock(*store_, *io_, records[seed - 1], seed).ok()) << seed;
  }
}

TEST_F(ColdStoreTest, BufferedIoWorksWhereDirectIsNotAllowed) {
  UseBufferedIo();
  EXPECT_FALSE(store_->direct_io());
  const ColdRecord record = Store(1);
  EXPECT_TRUE(CheckBlock(*store_, *io_, record, 1).ok());
}

/// A real small file system where this machine lets a test mount one; the injected faults above cover the
/// rest.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    mounted_ = ::mount("kvtier-test", path.c_str(), "tmpfs", 0, "size=2m") == 0;
    if (!mounted_)
      std::cout << "no small disk here: mount is not permitted; the logical capacity stands in\n";
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

class ColdStoreOnASmallDisk : public testing::Test {
 protected:
  void SetUp() override {
    store_ = ColdStore::Make(TestColdOptions(folder_.path())).value();
    ASSERT_TRUE(store_->Recover().ok());
    ASSERT_TRUE(store_->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok());
  }
  void TearDown() override { store_.reset(); }
  Status StoreNext() {
    const uint64_t seed = committed_.size() + 1;
    Result<ColdRecord> record = WriteBlock(*store_, *io_, allocator_, seed);
    KVTIER_TRY(record.status());
    KVTIER_TRY(store_->Commit({&*record, 1}, *io_));
    committed_.push_back(*record);
    return Status::Ok();
  }
  static void FillWith(const std::string& path) {
    std::ofstream file(path, std::ios::binary);
    const std::vector<char> zeros(4096);
    while (file.write(zeros.data(), static_cast<std::streamsize>(zeros.size())).flush()) {
    }
  }
  void CheckAll() {
    for (size_t i = 0; i < committed_.size(); ++i) {
      EXPECT_TRUE(CheckBlock(*store_, *io_, committed_[i], i + 1).ok()) << i;
    }
  }

  TempFolder folder_;
  SmallDisk disk_{folder_.path()};
  std::unique_ptr<BlockIo> io_ = MakeBlockIo(BlockIoKind::kSync).value();
  std::unique_ptr<ColdStore> store_;
  TestAllocator allocator_;
  std::vector<ColdRecord> committed_;
};

TEST_F(ColdStoreOnASmallDisk, S42_ShedsWhenTheDiskIsFullBeforeItsCapacity) {
  Status status;
  while (status.ok() && committed_.size() < 10'000) status = StoreNext();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
  EXPECT_FALSE(committed_.empty());
  if (disk_.mounted()) {
    EXPECT_LT(store_->allocated_bytes(), kTestCapacityBytes / 2);
  }
  CheckAll();
}

TEST_F(ColdStoreOnASmallDisk, S42_AStartOnAFullDiskReadsWhatIsThere) {
  if (!disk_.mounted()) return;  // nothing else can be full for RocksDB
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(StoreNext().ok());
  const std::string filler = folder_.path() + "/filler";
  for (const bool clean : {true, false}) {
    if (!clean) {
      // As a kill leaves it: without the mark that a stop makes.
      store_.reset();
      ASSERT_TRUE(ColdIndex::Open({.folder = folder_.path() + "/index"}).ok());
    }
    store_.reset();
    FillWith(filler);
    Result<std::unique_ptr<ColdStore>> store = ColdStore::Make(TestColdOptions(folder_.path()));
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(store).value();
    const Result<ColdRecovery> recovery = store_->Recover();
    ASSERT_TRUE(recovery.ok()) << recovery.status().ToString();
    EXPECT_TRUE(recovery->disk_full);
    EXPECT_EQ(recovery->blocks.size(), committed_.size());
    CheckAll();
    const ColdRecord again = committed_[0];
    EXPECT_EQ(store_->Commit({&again, 1}, *io_).code(), Code::kResourceExhausted);
    fs::remove(filler);
    EXPECT_TRUE(store_->Commit({&again, 1}, *io_).ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(StoreNext().ok()) << i;
    CheckAll();
  }
  store_.reset();
  store_ = ColdStore::Make(TestColdOptions(folder_.path())).value();
  EXPECT_EQ(store_->Recover().value().blocks.size(), committed_.size());
}

TEST_F(ColdStoreOnASmallDisk, S42_TheIndexGoesOnWhenSpaceReturns) {
  if (!disk_.mounted()) return;  // nothing else can fill RocksDB's disk
  ASSERT_TRUE(StoreNext().ok());
  const std::string filler = folder_.path() + "/filler";
  FillWith(filler);
  Status status;
  while (status.ok() && committed_.size() < 1000) {
    const ColdRecord again = committed_[0];  // no new data: only the index grows
    status = store_->Commit({&again, 1}, *io_);
    if (status.ok()) committed_.push_back(again);
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
  committed_.resize(1);
  fs::remove(filler);
  for (int i = 0; i < 20; ++i) {
    const Status after = StoreNext();
    EXPECT_TRUE(after.ok()) << after.ToString();
  }
  CheckAll();
  store_.reset();
  store_ = ColdStore::Make(TestColdOptions(folder_.path())).value();
  EXPECT_EQ(store_->Recover().value().blocks.size(), committed_.size());
}

}  // namespace
}  // namespace kvtier
