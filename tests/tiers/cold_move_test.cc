#include <gtest/gtest.h>

#include "tests/support/arena_slot.h"
#include "tests/support/blocks.h"
#include "tests/support/faulty_block_io.h"
#include "tests/tiers/cold_fixture.h"
#include "tiers/arena_store.h"
#include "tiers/move.h"

namespace kvtier {
namespace {

/// Blocks through MoveBlock between a host arena and a cold store, in each codec.
class ColdMoveTest : public ColdStoreTest, public testing::WithParamInterface<CodecId> {
 protected:
  static constexpr ArenaSpec kArena{
      .id = {1}, .tier = {0}, .tenant = {1}, .slots = 4, .slot_bytes = uint64_t{1} << 20};

  void SetUp() override {
    ColdStoreTest::SetUp();
    scratch_.io = io_.get();
    ASSERT_TRUE(arenas_.Create(kArena).ok());
    raw_ = RandomRaw(identity_.shape, 5);
  }

  MoveOrder Order(const Place& source, Medium& source_medium, const Place& target, Medium& target_medium) {
    return {.identity = identity_,
            .meta = {.parent = KeyOf(3), .floor = Precision::kNone, .is_tail = false},
            .staged = {},
            .source = source,
            .source_medium = &source_medium,
            .target = target,
            .target_medium = &target_medium,
            .codec = FindCodec(GetParam())};
  }
  /// A put into slot 0 as raw16, then a demotion to the cold store.
  ColdRecord Demote(MoveScratch& scratch) {
    MoveOrder put = Order({}, arenas_, SlotOf(kArena, 0), arenas_);
    put.staged = StagedSource{nullptr, raw_};
    put.source_medium = nullptr;
    put.codec = FindCodec(CodecId::kRaw16);
    EXPECT_TRUE(MoveBlock(put, scratch, outcome_).ok());
    ColdRecord record;
    record.identity = identity_;
    record.meta.parent = KeyOf(3);
    record.place = allocator_.Next(RawBlockBytes(identity_.shape) + 4096);
    status_ = MoveBlock(Order(SlotOf(kArena, 0), arenas_, record.place, *store_), scratch, outcome_);
    record.codec = outcome_.codec;
    record.image_bytes = outcome_.image_bytes;
    record.k_error = outcome_.k_error;
    record.v_error = outcome_.v_error;
    return record;
  }
  std::vector<std::byte> BytesAt(const Place& place, Medium& medium) {
    AlignedBuffer bounce;
    const auto bytes = medium.Read(place, *io_, bounce).value();
    const ImageView image = ParseImage(bytes).value();
    return {image.bytes.begin(), image.bytes.end()};
  }

  BlockIdentity identity_ = MakeIdentity(20);
  std::vector<std::byte> raw_;
  ArenaStore arenas_;
  MoveScratch scratch_;
  MoveOutcome outcome_;
  Status status_;
};

TEST_P(ColdMoveTest, ABlockGoesDownAndComesBackWithTheSameBytes) {
  const ColdRecord record = Demote(scratch_);
  ASSERT_TRUE(status_.ok()) << status_.ToString();
  ASSERT_TRUE(store_->Commit({&record, 1}, *io_).ok());
  const std::vector<std::byte> cold = BytesAt(record.place, *store_);
  EXPECT_EQ(cold.size(), record.image_bytes);
  ASSERT_TRUE(MoveBlock(Order(record.place, *store_, SlotOf(kArena, 1), arenas_), scratch_, outcome_).ok());
  EXPECT_EQ(BytesAt(SlotOf(kArena, 1), arenas_), cold);
  EXPECT_EQ(outcome_.codec, record.codec);
}

TEST_P(ColdMoveTest, TheScanFindsWhatWasCommitted) {
  ASSERT_TRUE(store_->PutModel({.name_space = identity_.name_space, .fields = "fields"}).ok());
  const ColdRecord record = Demote(scratch_);
  ASSERT_TRUE(store_->Commit({&record, 1}, *io_).ok());
  LoseIndex();
  ASSERT_EQ(recovery_.blocks.size(), 1u);
  const ColdRecord& found = recovery_.blocks[0];
  EXPECT_EQ(found.place, record.place);
  EXPECT_EQ(found.codec, record.codec);
  EXPECT_EQ(found.image_bytes, record.image_bytes);
  EXPECT_EQ(found.k_error, record.k_error);
  EXPECT_EQ(found.v_error, record.v_error);
  EXPECT_EQ(found.identity.key, record.identity.key);
  EXPECT_EQ(found.meta.parent, record.meta.parent);
  ASSERT_TRUE(VerifyBlock(identity_, found.place, {}, *store_, scratch_, outcome_).ok());
}

TEST_P(ColdMoveTest, S02_AFailedLegLeavesNothingAtTheTarget) {
  for (const bool shortened : {false, true}) {
    FaultyBlockIo faulty(*io_);
    MoveScratch scratch;
    scratch.io = &faulty;
    const uint64_t next_write = 2;  // the first makes the segment
    if (shortened) {
      faulty.ShortenNth(IoRequest::Op::kWrite, next_write, 4096);
    } else {
      faulty.FailNth(IoRequest::Op::kWrite, next_write, StatusFromErrno(EIO, "write"));
    }
    Demote(scratch);
    EXPECT_EQ(status_.code(), Code::kUnavailable);
    EXPECT_EQ(ParseImage(BytesAt(SlotOf(kArena, 0), arenas_))->identity.key, identity_.key);
    LoseIndex();
    EXPECT_TRUE(recovery_.blocks.empty());
  }
}

TEST_P(ColdMoveTest, S43_ACorruptRecordIsDataLossOfTheSource) {
  UseBufferedIo();  // the test writes to the file beside the store
  const ColdRecord record = Demote(scratch_);
  ASSERT_TRUE(store_->Commit({&record, 1}, *io_).ok());
  FlipBit(SegmentPath(record.place.container), record.place.offset + record.image_bytes / 2, 5);
  EXPECT_EQ(MoveBlock(Order(record.place, *store_, SlotOf(kArena, 1), arenas_), scratch_, outcome_).code(),
            Code::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(Codecs, ColdMoveTest,
                         testing::Values(CodecId::kRaw16, CodecId::kKv4p, CodecId::kKv42, CodecId::kKv2p),
                         [](const auto& info) { return std::string(FindCodec(info.param)->name); });

}  // namespace
}  // namespace kvtier
