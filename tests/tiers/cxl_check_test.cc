#include "tiers/cxl_check.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/tiers/cold_parts.h"
#include "tests/tiers/cxl_fixture.h"
#include "tiers/cxl_reader.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kHeader = kColdRecordHeaderBytes;

class CxlCheckTest : public ColdStoreTest {
 protected:
  static constexpr uint64_t kBlocks = 8;

  Result<std::unique_ptr<ColdStore>> MakeStore(const std::string& path) override {
    return MakeCxlStore(path);
  }
  /// Blocks 1..kBlocks in three segments, and a clean stop.
  void StoreAndClose() {
    for (uint64_t seed = 1; seed <= kBlocks; ++seed) {
      stored_.push_back(Store(seed));
      if (seed % 3 == 0) allocator_.SealSegment();
    }
    store_.reset();
  }
  static std::string FileIn(const std::string& folder) { return folder + "/" + std::string(kCxlFileName); }
  std::string FilePath() const { return FileIn(folder_.path()); }
  /// Of a place of the store in its file.
  static uint64_t OffsetOf(const Place& place) {
    return CxlSegmentOffset(place.container, kTestSegmentBytes) + place.offset;
  }
  CxlCheck Check() const {
    const auto written = fs::last_write_time(FilePath());
    const Result<CxlCheck> check = CheckCxlStore(FilePath());
    EXPECT_EQ(fs::last_write_time(FilePath()), written) << "a check changed something";
    EXPECT_TRUE(check.ok()) << check.status().ToString();
    return check.ok() ? *check : CxlCheck{};
  }
  /// What a daemon makes of it that starts and stops.
  void StartAndStop() {
    recovery_ = OpenStore(folder_.path());
    store_.reset();
  }
  void ExpectSound(uint64_t live) const {
    const CxlCheck check = Check();
    EXPECT_TRUE(check.sound()) << testing::PrintToString(check.damage);
    EXPECT_EQ(check.live, live);
  }
  /// Flips the bit and back: meanwhile it is damage of which `lines` are told.
  void ExpectFound(uint64_t offset, int bit, const testing::Matcher<std::vector<std::string>>& lines) const {
    FlipBit(FilePath(), offset, bit);
    const CxlCheck check = Check();
    EXPECT_FALSE(check.sound()) << "a flip at " << offset;
    EXPECT_THAT(check.damage, lines) << "a flip at " << offset;
    FlipBit(FilePath(), offset, bit);
  }
  void Overwrite(uint64_t offset, std::span<const std::byte> bytes) const {
    std::fstream file(FilePath(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    KVTIER_CHECK(file.good());
  }
  template <typename T>
  void OverwriteWith(uint64_t offset, const T& value) const {
    Overwrite(offset, std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  T At(uint64_t offset) const {
    T value;
    std::ifstream file(FilePath(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(&value), sizeof(value));
    KVTIER_CHECK(file.good());
    return value;
  }
};

TEST_F(CxlCheckTest, AClosedStoreIsSound) {
  StoreAndClose();
  ExpectSound(kBlocks);
  const CxlCheck check = CheckCxlStore(folder_.path()).value();  // the folder is as good
  EXPECT_EQ(check.segments, 3u);
  EXPECT_EQ(check.models, 1u);
  EXPECT_TRUE(check.closed);
  EXPECT_EQ(check.live, kBlocks);
}

TEST_F(CxlCheckTest, AStoreInUseIsRefusedAndAKilledOneIsSound) {
  for (uint64_t seed = 1; seed <= 3; ++seed) Store(seed);
  Write(4);
  const Status in_use = CheckCxlStore(FilePath()).status();
  EXPECT_EQ(in_use.code(), Code::kFailedPrecondition);
  EXPECT_THAT(in_use.message(), HasSubstr("a daemon uses it"));
  TempFolder killed;
  fs::copy_file(FilePath(), FileIn(killed.path()));
  const CxlCheck check = CheckCxlStore(FileIn(killed.path())).value();
  EXPECT_TRUE(check.sound()) << testing::PrintToString(check.damage);
  EXPECT_FALSE(check.closed);
  EXPECT_EQ(check.live, 4u);
}

TEST_F(CxlCheckTest, NoDaemonStartsWhileItIsRead) {
  StoreAndClose();
  {
    const auto reader = CxlReader::Open(CxlFileTarget(folder_.path())).value();
    EXPECT_EQ(MakeStore(folder_.path()).status().code(), Code::kFailedPrecondition);
    EXPECT_TRUE(CheckCxlStore(FilePath()).ok()) << "two may look at once";
  }
  StartAndStop();
}

TEST_F(CxlCheckTest, S44_AFlippedBitOfASuperblockIsFoundAndMended) {
  StoreAndClose();
  for (uint64_t at = 0; at < sizeof(CxlSuperblock); at += 3) {
    for (const uint64_t copy : {uint64_t{0}, kColdBlockBytes}) {
      ExpectFound(copy + at, static_cast<int>(at % 8),
                  ElementsAre(FilePath() + ": one of the two superblocks"));
    }
  }
  FlipBit(FilePath(), 40);
  StartAndStop();
  ExpectSound(kBlocks);
}

TEST_F(CxlCheckTest, S44_AFlippedBitOfAModelIsFoundAndMended) {
  StoreAndClose();
  // The only one: 64 bytes and the 6 of its fields.
  for (uint64_t at = 0; at < sizeof(CxlModelHeader) + 6; ++at) {
    ExpectFound(
        kCxlModelsOffset + at, static_cast<int>(at % 8),
        ElementsAre(FilePath() + ": model at 8192", FilePath() + ": 8 blocks of models that are not there"));
  }
  FlipBit(FilePath(), kCxlModelsOffset + 65);
  StartAndStop();
  EXPECT_EQ(recovery_.unknown_model_blocks, kBlocks);
  EXPECT_THAT(Check().damage, ElementsAre(FilePath() + ": 8 blocks of models that are not there"));
  recovery_ = OpenStore(folder_.path());
  ASSERT_TRUE(store_->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok());
  store_.reset();
  ExpectSound(kBlocks);
}

TEST_F(CxlCheckTest, S44_AFlippedBitOfASegmentHeaderIsFoundAndMended) {
  StoreAndClose();
  for (uint64_t at = 0; at < kColdSegmentHeaderBytes; at += at < 64 ? 1 : 53) {
    ExpectFound(CxlSegmentOffset(1, kTestSegmentBytes) + at, static_cast<int>(at % 8),
                ElementsAre(FilePath() + ": segment 1: header"));
  }
  FlipBit(FilePath(), CxlSegmentOffset(1, kTestSegmentBytes) + 16);
  StartAndStop();
  ExpectSound(kBlocks);
  // Of one that was never used, too.
  ExpectFound(CxlSegmentOffset(5, kTestSegmentBytes) + 100, 1, ElementsAre(HasSubstr("segment 5: header")));
}

TEST_F(CxlCheckTest, S44_AFlippedBitAnywhereInARecordIsFoundAndCostsThisOneAlone) {
  StoreAndClose();
  const ColdRecord& record = stored_[4];
  const uint64_t begin = OffsetOf(record.place), end = kHeader + record.image_bytes;
  const std::string at = FilePath() + ": segment 1: record at " + std::to_string(record.place.offset);
  for (uint64_t offset = 0; offset < kHeader; ++offset) {
    ExpectFound(begin + offset, static_cast<int>(offset % 8), ElementsAre(at + ": header"));
  }
  for (uint64_t offset = kHeader; offset < end; offset += offset < kHeader + 256 ? 3 : 331) {
    ExpectFound(begin + offset, static_cast<int>(offset % 8),
                ElementsAre(at + ": block " + KeyOf(5).ToHex()));
  }
  ExpectFound(begin + end - 1, 7, ElementsAre(at + ": block " + KeyOf(5).ToHex()));
  ExpectSound(kBlocks);
}

TEST_F(CxlCheckTest, WhatIsNotUsedIsNotLookedAt) {
  StoreAndClose();
  const ColdRecord& record = stored_[0];
  const uint64_t end = kHeader + record.image_bytes;
  ASSERT_LT(end, record.place.bytes);
  for (const uint64_t offset :
       {sizeof(CxlSuperblock) + 0, kColdBlockBytes - 1, uint64_t{2 * kColdBlockBytes - 1},
        kCxlModelsOffset + sizeof(CxlModelHeader) + 6, kCxlModelsOffset + 1000, kCxlMetaBytes - 1,
        OffsetOf(record.place) + end, OffsetOf(record.place) + record.place.bytes - 1,
        CxlSegmentOffset(1, kTestSegmentBytes) - 1, CxlSegmentOffset(6, kTestSegmentBytes) - 1}) {
    FlipBit(FilePath(), offset, 5);
    const CxlCheck check = Check();
    EXPECT_TRUE(check.sound()) << offset << ": " << testing::PrintToString(check.damage);
    EXPECT_EQ(check.live, kBlocks) << offset;
  }
  StartAndStop();
  EXPECT_EQ(recovery_.blocks.size(), kBlocks);
  EXPECT_EQ(recovery_.dropped_records, 0u);
  ExpectSound(kBlocks);
}

TEST_F(CxlCheckTest, S44_AStartDropsDamagedRecordsOnceAndLeavesASoundStore) {
  StoreAndClose();
  FlipBit(FilePath(), OffsetOf(stored_[0].place) + 100);           // its header
  FlipBit(FilePath(), OffsetOf(stored_[4].place) + kHeader + 40);  // the image's
  EXPECT_EQ(Check().damaged, 2u);
  StartAndStop();
  EXPECT_EQ(recovery_.dropped_records, 2u);
  EXPECT_EQ(recovery_.blocks.size(), kBlocks - 2);
  ExpectSound(kBlocks - 2);
  StartAndStop();
  EXPECT_EQ(recovery_.dropped_records, 0u);
  EXPECT_EQ(recovery_.blocks.size(), kBlocks - 2);
  // Its planes are looked at after a kill, or when somebody reads them.
  FlipBit(FilePath(), OffsetOf(stored_[7].place) + kHeader + stored_[7].image_bytes - 1);
  recovery_ = OpenStore(folder_.path());
  CrashAndReopen();
  EXPECT_EQ(recovery_.dropped_records, 1u);
  store_.reset();
  const CxlCheck mended = CheckCxlStore(FileIn(crashed_->path())).value();
  EXPECT_TRUE(mended.sound()) << testing::PrintToString(mended.damage);
  EXPECT_EQ(mended.live, kBlocks - 3);
}

TEST_F(CxlCheckTest, S44_DamagedTailsAreFound) {
  const WrittenParts parts = WriteParts(*store_, *io_, allocator_, MakePartsBlock(1)).value();
  ASSERT_TRUE(CommitParts(*store_, *io_, parts).ok());
  store_.reset();
  ExpectSound(3);
  for (const ColdRecord& tail : parts.tails) {
    const uint64_t begin = OffsetOf(tail.place);
    for (const uint64_t at : {uint64_t{20}, kHeader, kHeader + 100, kHeader + 200,
                              kHeader + tail.image_bytes / 2, kHeader + tail.image_bytes - 65}) {
      ExpectFound(begin + at, 2,
                  ElementsAre(HasSubstr(": segment " + std::to_string(tail.place.container) + ": record at " +
                                        std::to_string(tail.place.offset))));
    }
  }
}

TEST_F(CxlCheckTest, WhatAKilledDaemonHadBegunIsNoDamage) {
  const ColdRecord erased = Store(1), half = Store(2), last = Store(3);
  ASSERT_TRUE(store_->Erase({&erased, 1}, *io_).ok());
  ASSERT_TRUE(
      store_->PutModel({.name_space = DigestOf<NamespaceDigest>(9), .fields = std::string(200, 'x')}).ok());
  store_.reset();
  // A record without a header yet, or with some of it, in memory that was zero; a model likewise.
  const std::vector<std::byte> zeros(kHeader);
  Overwrite(OffsetOf(half.place), zeros);
  Overwrite(OffsetOf(last.place) + 100, std::span(zeros).first(kHeader - 100));
  const uint64_t model = kCxlModelsOffset + 128;
  Overwrite(model + 48, std::span(zeros).first(16));
  ExpectSound(0);
  Overwrite(model, std::span(zeros).first(sizeof(CxlModelHeader)));
  ExpectSound(0);
  StartAndStop();
  EXPECT_EQ(recovery_.dropped_records, 0u) << "a kill alone is none";
  EXPECT_EQ(recovery_.models.size(), 1u);
  // The next model takes the place of the unfinished one, of which nothing stays.
  recovery_ = OpenStore(folder_.path());
  ASSERT_TRUE(store_->PutModel({.name_space = DigestOf<NamespaceDigest>(10), .fields = "new"}).ok());
  store_.reset();
  ExpectSound(0);
  EXPECT_EQ(Check().models, 2u);
  StartAndStop();
  EXPECT_EQ(recovery_.models.size(), 2u);
  EXPECT_EQ(recovery_.dropped_records, 0u);
}

TEST_F(CxlCheckTest, RecordsOfAnEarlierUseAreNoDamage) {
  StoreAndClose();
  recovery_ = OpenStore(folder_.path());
  ASSERT_TRUE(store_->RecycleSegment(0, allocator_.TakeSequence(), *io_).ok());
  store_.reset();
  ExpectSound(kBlocks - 3);
  FlipBit(FilePath(), OffsetOf(stored_[1].place) + 120);  // dead already
  ExpectSound(kBlocks - 3);
}

TEST_F(CxlCheckTest, S44_ATruncatedFileIsFoundAndMended) {
  StoreAndClose();
  const uint64_t cut = OffsetOf(stored_[4].place) + 5000;
  fs::resize_file(FilePath(), cut);
  const CxlCheck check = Check();
  EXPECT_FALSE(check.sound());
  EXPECT_EQ(check.missing_bytes, kTestCapacityBytes - cut);
  EXPECT_EQ(check.live, 4u);
  EXPECT_THAT(check.damage, ElementsAre(FilePath() + ": truncated to " + std::to_string(cut) + " bytes of " +
                                            std::to_string(kTestCapacityBytes),
                                        FilePath() + ": segment 1: record at " +
                                            std::to_string(stored_[4].place.offset) + ": header"));
  StartAndStop();
  EXPECT_EQ(recovery_.blocks.size(), 4u);
  ExpectSound(4);
  for (const uint64_t bytes : {kCxlMetaBytes + 100, kCxlModelsOffset + 10, uint64_t{5000}, uint64_t{130}}) {
    fs::resize_file(FilePath(), bytes);
    EXPECT_FALSE(Check().sound()) << bytes;
  }
}

TEST_F(CxlCheckTest, S44_WhatStandsInAWrongPlaceIsFoundAndMended) {
  StoreAndClose();
  const auto segment = At<SegmentHeader>(CxlSegmentOffset(2, kTestSegmentBytes));
  OverwriteWith(CxlSegmentOffset(4, kTestSegmentBytes), segment);
  const auto record = At<RecordHeader>(OffsetOf(stored_[7].place));
  OverwriteWith(OffsetOf(stored_[1].place), record);
  const CxlCheck check = Check();
  EXPECT_EQ(check.foreign_segments, 1u);
  EXPECT_THAT(check.damage, ElementsAre(FilePath() + ": segment 0: record at " +
                                            std::to_string(stored_[1].place.offset) + ": header",
                                        FilePath() + ": segment 4: belongs to another store or place"));
  StartAndStop();
  ExpectSound(kBlocks - 1);
}

TEST_F(CxlCheckTest, S44_ARecordOfAnotherPartThanItsSegmentIsFoundAndMended) {
  StoreAndClose();
  recovery_ = OpenStore(folder_.path());
  const WrittenParts parts = WriteParts(*store_, *io_, allocator_, MakePartsBlock(20)).value();
  ASSERT_TRUE(CommitParts(*store_, *io_, parts).ok());
  store_.reset();
  // Block 1 once more, behind a K tail.
  const Place tail = parts.tails[0].place;
  const ColdRecord base = stored_[0];
  const auto header = At<RecordHeader>(OffsetOf(base.place));
  ColdRecord moved = RecordOfHeader(header);
  moved.place.container = tail.container;
  moved.place.epoch = tail.epoch;
  moved.place.offset = tail.offset + tail.bytes;
  moved.binding = header.binding;
  std::vector<std::byte> image(base.image_bytes);
  {
    std::ifstream file(FilePath(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(OffsetOf(base.place) + kHeader));
    file.read(reinterpret_cast<char*>(image.data()), static_cast<std::streamsize>(image.size()));
  }
  OverwriteWith(OffsetOf(moved.place), MakeRecordHeader(header.uuid, moved, RecordState::kLive));
  Overwrite(OffsetOf(moved.place) + kHeader, image);
  const CxlCheck check = Check();
  EXPECT_EQ(check.damaged, 1u);
  EXPECT_THAT(check.damage,
              ElementsAre(HasSubstr("is of another part than the first: block " + KeyOf(1).ToHex())));
  StartAndStop();
  EXPECT_TRUE(Check().sound());
}

TEST_F(CxlCheckTest, S44_BothSuperblocksDamagedAreAnErrorAndSoAreSizesThatNoStoreHas) {
  StoreAndClose();
  const auto sound = At<CxlSuperblock>(0);
  const auto refused = [&](const CxlSuperblock& superblock) {
    OverwriteWith(0, superblock);
    OverwriteWith(kColdBlockBytes, superblock);
    return CheckCxlStore(FilePath()).status();
  };
  CxlSuperblock damaged = sound;
  damaged.serial ^= 1;
  EXPECT_EQ(refused(damaged).code(), Code::kDataLoss);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{8193}, UINT64_MAX,
                               UINT64_MAX - 4095, uint64_t{1} << 62}) {
    CxlSuperblock odd = sound;
    odd.segment_bytes = bytes;
    EXPECT_EQ(refused(Sealed(odd)).code(), Code::kDataLoss) << bytes;
    EXPECT_FALSE(MakeStore(folder_.path()).ok()) << bytes;
  }
  CxlSuperblock many = sound;
  many.segment_limit = UINT32_MAX;
  EXPECT_EQ(refused(Sealed(many)).code(), Code::kDataLoss);
  CxlSuperblock far = sound;
  far.meta_bytes = UINT64_MAX;
  EXPECT_EQ(refused(Sealed(far)).code(), Code::kDataLoss);
  CxlSuperblock newer = sound;
  newer.version = 9;
  EXPECT_EQ(refused(Sealed(newer)).code(), Code::kFailedPrecondition);
  // So many that the file is far too small for them.
  CxlSuperblock most = sound;
  most.segment_limit = kColdMaxSegments;
  EXPECT_TRUE(refused(Sealed(most)).ok());
  EXPECT_GT(Check().missing_bytes, 0u);
}

TEST_F(CxlCheckTest, WhatIsNoStoreIsOneClearError) {
  TempFolder other;
  const std::string path = other.path() + "/file";
  const auto code = [&] { return CheckCxlStore(path).status().code(); };
  EXPECT_EQ(code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(CheckCxlStore(other.path()).status().code(), Code::kNotFound);
  EXPECT_EQ(CheckCxlStore(other.path() + "/none/file").status().code(), Code::kNotFound);
  std::ofstream(path) << "";
  EXPECT_EQ(code(), Code::kNotFound) << "empty";
  fs::resize_file(path, kTestCapacityBytes);
  EXPECT_EQ(code(), Code::kNotFound) << "zeros";
  std::ofstream(path) << "dear";
  EXPECT_EQ(code(), Code::kFailedPrecondition) << "a letter";
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(code(), Code::kFailedPrecondition) << "a pipe";
  EXPECT_EQ(CheckCxlStore("/dev/null").status().code(), Code::kFailedPrecondition);
}

TEST_F(CxlCheckTest, S44_AFileThatIsCutWhileItIsReadIsAnErrorOfTheRead) {
  StoreAndClose();
  const auto reader = CxlReader::Open(CxlFileTarget(folder_.path())).value();
  fs::resize_file(FilePath(), kCxlMetaBytes);
  AlignedBuffer buffer;
  EXPECT_FALSE(reader->Read(kCxlMetaBytes, kTestSegmentBytes, buffer).ok());
  EXPECT_TRUE(reader->Read(0, kCxlMetaBytes, buffer).ok());
}

TEST_F(CxlCheckTest, S44_PagesThatADeviceCannotGiveAreReadAsZerosAndTold) {
  StoreAndClose();
  CxlTarget device = CxlFileTarget(folder_.path());
  device.kind = CxlKind::kDevDax;
  device.device_bytes = kTestCapacityBytes;
  device.device_page_bytes = kColdBlockBytes;
  const auto reader = CxlReader::Open(device).value();
  AlignedBuffer buffer;
  const uint64_t offset = OffsetOf(stored_[0].place);
  const auto record = reader->Read(offset, kHeader, buffer);
  ASSERT_TRUE(record.ok());
  EXPECT_FALSE(IsZero(*record));
  EXPECT_FALSE(reader->lost());
  fs::resize_file(FilePath(), kCxlMetaBytes);
  EXPECT_TRUE(IsZero(*reader->Read(offset, kHeader, buffer)));
  EXPECT_TRUE(reader->lost());
  device.device_bytes = 0;
  EXPECT_EQ(CxlReader::Open(device).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace kvtier
