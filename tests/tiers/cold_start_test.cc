// What a start puts in order, and what it goes on without.
#include "tests/tiers/cold_fixture.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

class ColdStartTest : public ColdStoreTest {};

TEST_F(ColdStartTest, AStartMakesRoomForOtherModelsByRemovingThoseWithoutABlock) {
  StoreMany(3);
  const uint32_t limit = ColdModelLimit(kTestCapacityBytes);
  const auto model = [](uint32_t number) {
    return ModelRecord{.name_space = DigestOf<NamespaceDigest>(1000 + number), .fields = "fields"};
  };
  for (uint32_t i = 2; i <= limit / 2; ++i) ASSERT_TRUE(store_->PutModel(model(i)).ok()) << i;
  Reopen();
  EXPECT_EQ(recovery_.models.size(), limit / 2) << "there is room";
  for (uint32_t i = limit / 2 + 1; i <= limit; ++i) ASSERT_TRUE(store_->PutModel(model(i)).ok()) << i;
  ASSERT_EQ(store_->PutModel(model(0)).code(), Code::kOutOfRange);
  Reopen();
  EXPECT_EQ(recovery_.removed_models, limit - 1);
  ASSERT_EQ(recovery_.models.size(), 1u);
  EXPECT_EQ(recovery_.models[0].name_space, TestNamespace());
  ExpectBack(1, 3);
  EXPECT_TRUE(store_->PutModel(model(0)).ok());
}

TEST_F(ColdStartTest, AModelWhoseBlocksAreInASegmentThatCannotBeOpenedIsKept) {
  StoreMany(1);
  const uint32_t limit = ColdModelLimit(kTestCapacityBytes);
  for (uint32_t i = 2; i <= limit; ++i) {
    const ModelRecord other{.name_space = DigestOf<NamespaceDigest>(1000 + i), .fields = "fields"};
    ASSERT_TRUE(store_->PutModel(other).ok()) << i;
  }
  store_.reset();
  const std::string kept = folder_.path() + "/kept";
  fs::rename(SegmentPath(0), kept);
  fs::create_symlink(SegmentPath(0), SegmentPath(0));
  recovery_ = OpenStore(folder_.path());
  ASSERT_EQ(recovery_.unopened_files, 1u);
  EXPECT_EQ(recovery_.removed_models, 0u);
  store_.reset();
  fs::rename(kept, SegmentPath(0));
  recovery_ = OpenStore(folder_.path());
  ExpectBack(1, 1);
  EXPECT_EQ(recovery_.removed_models, limit - 1) << "those of no block, once all can be looked at";
}

TEST_F(ColdStartTest, ASegmentThatCannotBeOpenedCostsItsBlocksUntilItCan) {
  StoreMany(60);
  ASSERT_GT(stored_.back().place.container, 1u);
  store_.reset();
  const std::string kept = folder_.path() + "/kept";
  fs::rename(SegmentPath(1), kept);
  fs::create_symlink(SegmentPath(1), SegmentPath(1));  // ELOOP, for root too
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.unopened_files, 1u);
  EXPECT_EQ(recovery_.damaged_headers, 0u);
  EXPECT_EQ(recovery_.segments[1].number, 1u);
  EXPECT_TRUE(recovery_.segments[1].unopened);
  for (const ColdRecord& record : stored_) {
    const uint64_t seed = static_cast<uint64_t>(&record - stored_.data()) + 1;
    EXPECT_EQ(Recovered(seed) == nullptr, record.place.container == 1) << seed;
  }
  Store(61);
  store_.reset();
  fs::rename(kept, SegmentPath(1));
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(recovery_.unopened_files, 0u);
  ExpectBack(1, 61);
}

}  // namespace
}  // namespace kvtier
