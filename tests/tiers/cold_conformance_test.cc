// What every cold store promises (tiers/cold_store.h), for each there is. A new one adds a line to kStores.
#include <gtest/gtest.h>

#include "tests/tiers/cxl_fixture.h"

namespace kvtier {
namespace {

struct StoreCase {
  const char* name;
  bool in_memory;           ///< a CXL store on a file
  const char* granularity;  ///< forced on libpmem2
};
const StoreCase kStores[] = {
    {"Files", false, nullptr},
    {"CxlSyncedPages", true, "PAGE"},
    {"CxlFlushedLines", true, "CACHE_LINE"},
    {"CxlBytes", true, "BYTE"},
};

class AnyColdStoreTest : public ColdStoreTest, public testing::WithParamInterface<StoreCase> {
 protected:
  Result<std::unique_ptr<ColdStore>> MakeStore(const std::string& path) override {
    if (GetParam().in_memory) return MakeCxlStore(path);
    ColdStoreOptions options = TestColdOptions(path);
    options.allow_direct_io = false;  // tests write to its files beside it
    return ColdStore::Make(options);
  }
  /// Flips one bit of a segment.
  void Flip(uint32_t segment, uint64_t offset, int bit) {
    if (GetParam().in_memory) {
      FlipBit(folder_.path() + "/" + std::string(kCxlFileName),
              CxlSegmentOffset(segment, kTestSegmentBytes) + offset, bit);
    } else {
      FlipBit(SegmentPath(segment), offset, bit);
    }
  }

 private:
  const ForcedGranularity granularity_{GetParam().granularity};
};

TEST_P(AnyColdStoreTest, ABlockReadsBackAsItWasWritten) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const ColdRecord record = Store(seed);
    EXPECT_TRUE(CheckBlock(*store_, *io_, record, seed).ok());
  }
}

TEST_P(AnyColdStoreTest, CommittedBlocksAreBackAfterACleanStop) {
  std::vector<ColdRecord> stored;
  for (uint64_t seed = 1; seed <= 60; ++seed) stored.push_back(Store(seed));
  Reopen();
  EXPECT_EQ(recovery_.blocks.size(), 60u);
  EXPECT_EQ(recovery_.dropped_records, 0u);
  EXPECT_EQ(recovery_.scanned_records, 0u);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const ColdRecord* found = Recovered(seed);
    ASSERT_NE(found, nullptr) << seed;
    EXPECT_EQ(found->identity, stored[seed - 1].identity);
    EXPECT_EQ(found->place, stored[seed - 1].place);
    EXPECT_EQ(found->meta.parent, stored[seed - 1].meta.parent);
    EXPECT_TRUE(CheckBlock(*store_, *io_, *found, seed).ok()) << seed;
  }
}

TEST_P(AnyColdStoreTest, AppendPositionsAreBackAfterACleanStop) {
  Store(1);
  const ColdRecord last = Store(2);
  Reopen();
  ASSERT_EQ(recovery_.segments.size(), 1u);
  EXPECT_EQ(recovery_.segments[0].number, 0u);
  EXPECT_EQ(recovery_.segments[0].sequence, last.place.epoch);
  EXPECT_EQ(recovery_.segments[0].used_bytes, last.place.offset + last.place.bytes);
}

TEST_P(AnyColdStoreTest, ModelsAreBackAfterARestart) {
  ASSERT_TRUE(store_->PutModel({.name_space = TestNamespace(), .fields = "model fields"}).ok());
  Reopen();
  ASSERT_EQ(recovery_.models.size(), 1u);
  EXPECT_EQ(recovery_.models[0].name_space, TestNamespace());
  EXPECT_EQ(recovery_.models[0].fields, "model fields");
}

TEST_P(AnyColdStoreTest, S44_EveryDamagedByteOfARecordIsDetected) {
  const ColdRecord record = Store(1);
  const uint64_t used_bytes = kColdRecordHeaderBytes + record.image_bytes;
  for (uint64_t at = 0; at < used_bytes; ++at) {
    const int bit = static_cast<int>(at % 8);
    Flip(0, record.place.offset + at, bit);
    // A flipped version, codec or flag of the image reads as one of the future.
    const Code code = CheckBlock(*store_, *io_, record, 1).code();
    EXPECT_TRUE(code == Code::kDataLoss || code == Code::kUnimplemented) << "byte " << at;
    Flip(0, record.place.offset + at, bit);
  }
  EXPECT_TRUE(CheckBlock(*store_, *io_, record, 1).ok());
}

TEST_P(AnyColdStoreTest, ErasingASupersededCopyKeepsTheNewerOne) {
  const ColdRecord old_copy = Store(1);
  const ColdRecord new_copy = Store(1);
  ASSERT_TRUE(store_->Erase({&old_copy, 1}, *io_).ok());
  Reopen();
  ASSERT_NE(Recovered(1), nullptr);
  EXPECT_EQ(Recovered(1)->place, new_copy.place);
}

TEST_P(AnyColdStoreTest, S12_APlaceInARecycledSegmentIsStale) {
  const ColdRecord record = Store(1);
  ASSERT_TRUE(store_->RecycleSegment(0, 5, *io_).ok());
  EXPECT_EQ(CheckBlock(*store_, *io_, record, 1).code(), Code::kStale);
  AlignedBuffer bounce;
  const auto built = store_->BeginWrite(record.place, bounce);
  ASSERT_TRUE(built.ok());
  const std::vector<std::byte> image = ImageOf(MakeTestBlock(1));
  std::copy(image.begin(), image.end(), built->begin());
  EXPECT_EQ(store_->FinishWrite(record.place, *io_, *built, image.size(), record.meta).code(), Code::kStale);
  EXPECT_EQ(store_->Commit({&record, 1}, *io_).code(), Code::kStale);
}

TEST_P(AnyColdStoreTest, AnErasedBlockIsGoneAfterACleanStopAndAfterACrash) {
  const ColdRecord erased = Store(1);
  const ColdRecord kept = Store(2);
  ASSERT_TRUE(store_->Erase({&erased, 1}, *io_).ok());
  EXPECT_EQ(CheckBlock(*store_, *io_, erased, 1).code(), Code::kDataLoss);
  EXPECT_TRUE(CheckBlock(*store_, *io_, kept, 2).ok());
  Reopen();
  EXPECT_EQ(Recovered(1), nullptr);
  EXPECT_NE(Recovered(2), nullptr);
  CrashAndReopen();
  EXPECT_EQ(Recovered(1), nullptr);
  EXPECT_NE(Recovered(2), nullptr);
}

TEST_P(AnyColdStoreTest, CommittedBlocksAreBackAfterACrash) {
  for (uint64_t seed = 1; seed <= 20; ++seed) Store(seed);
  CrashAndReopen();
  EXPECT_EQ(recovery_.blocks.size(), 20u);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ASSERT_NE(Recovered(seed), nullptr) << seed;
    EXPECT_TRUE(CheckBlock(*store_, *io_, *Recovered(seed), seed).ok()) << seed;
  }
}

TEST_P(AnyColdStoreTest, OfTwoCopiesOfABlockTheNewerIsBackAfterACrash) {
  Store(1);
  const ColdRecord newer = Store(1);
  CrashAndReopen();
  ASSERT_EQ(recovery_.blocks.size(), 1u);
  EXPECT_EQ(Recovered(1)->place, newer.place);
  CrashAndReopen();
  EXPECT_EQ(Recovered(1)->place, newer.place);
}

TEST_P(AnyColdStoreTest, ARecycledSegmentIsEmptyAfterACleanStopAndAfterACrash) {
  Store(1);
  ASSERT_TRUE(store_->RecycleSegment(0, 5, *io_).ok());
  Reopen();
  EXPECT_TRUE(recovery_.blocks.empty());
  EXPECT_EQ(recovery_.segments.at(0).sequence, 5u);
  CrashAndReopen();
  EXPECT_TRUE(recovery_.blocks.empty());
}

TEST_P(AnyColdStoreTest, S41_SegmentsStopAtTheCapacity) {
  Status status;
  uint64_t seed = 0;
  while (status.ok() && seed < 10'000) status = WriteBlock(*store_, *io_, allocator_, ++seed).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_LE(store_->allocated_bytes(), kTestCapacityBytes);
}

TEST_P(AnyColdStoreTest, S53_TheSecondDaemonIsRefusedWithAClearLine) {
  const Result<std::unique_ptr<ColdStore>> second = MakeStore(folder_.path());
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(second.status().message().find("another daemon uses it"), std::string::npos)
      << second.status().message();
}

INSTANTIATE_TEST_SUITE_P(Stores, AnyColdStoreTest, testing::ValuesIn(kStores),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier
