#include "tiers/move.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/blocks.h"
#include "tests/support/faulty_medium.h"
#include "tiers/arena_store.h"

namespace kvtier {
namespace {

/// A ladder of two host tiers in one store: slots of 1 MiB in arena 0 (hot) and arena 1 (warm).
class MoveBlockTest : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = 4;
  static constexpr uint64_t kSlotBytes = uint64_t{1} << 20;

  void SetUp() override {
    auto io = MakeBlockIo(BlockIoKind::kSync);
    ASSERT_TRUE(io.ok());
    io_ = std::move(io).value();
    scratch_.io = io_.get();
    for (uint32_t id : {0, 1}) {
      const Status created = store_.Create({.id = {id},
                                            .tier = {static_cast<uint8_t>(id)},
                                            .tenant = {1},
                                            .slots = kSlots,
                                            .slot_bytes = kSlotBytes});
      ASSERT_TRUE(created.ok()) << created.ToString();
    }
    raw_ = RandomRaw(identity_.shape, 21);
  }

  /// A slot that was never used before.
  Place NewPlace(uint32_t arena) {
    const uint32_t slot = next_slot_[arena]++ % kSlots;
    return {.tier = {static_cast<uint8_t>(arena)},
            .container = arena,
            .slot = slot,
            .offset = ArenaHeaderBytes(kSlots) + slot * kSlotBytes,
            .bytes = kSlotBytes,
            .epoch = ++epoch_};
  }
  MoveOrder PutOrder(CodecId codec, const Place& target) {
    return {.identity = identity_,
            .meta = {},
            .staged = StagedSource{nullptr, raw_},
            .source = {},
            .source_medium = nullptr,
            .target = target,
            .target_medium = &store_,
            .codec = FindCodec(codec)};
  }
  MoveOrder MoveFrom(const Place& source, CodecId codec, const Place& target) {
    MoveOrder order = PutOrder(codec, target);
    order.staged.reset();
    order.source = source;
    order.source_medium = &store_;
    return order;
  }
  Place Put(CodecId codec) {
    const Place place = NewPlace(0);
    const Status status = MoveBlock(PutOrder(codec, place), scratch_, outcome_);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return place;
  }
  std::span<const std::byte> BytesAt(const Place& place) {
    AlignedBuffer bounce;
    return store_.Read(place, *io_, bounce).value();
  }
  std::vector<std::byte> ImageAt(const Place& place) { return CopyOf(ParseImage(BytesAt(place))->bytes); }

  BlockIdentity identity_ = MakeIdentity(20);
  std::vector<std::byte> raw_;
  ArenaStore store_;
  std::unique_ptr<BlockIo> io_;
  MoveScratch scratch_;
  MoveOutcome outcome_;
  uint32_t next_slot_[2] = {0, 0};
  uint64_t epoch_ = 0;
};

TEST_F(MoveBlockTest, APutStoresTheBlockAndSaysWhatStandsThere) {
  const Place place = Put(CodecId::kRaw16);
  EXPECT_EQ(outcome_.codec, CodecId::kRaw16);
  EXPECT_EQ(outcome_.image_bytes, ImageAt(place).size());
  EXPECT_FALSE(outcome_.any_raw_layer);
  EXPECT_EQ(outcome_.k_error, 0);
  EXPECT_EQ(outcome_.encoded_bytes, 0u);
  EXPECT_EQ(store_.ReadEpoch({0}, place.slot).value(), place.epoch);
  MoveOutcome verified;
  EXPECT_TRUE(VerifyBlock(identity_, place, {}, store_, scratch_, verified).ok());
  EXPECT_EQ(verified.image_bytes, outcome_.image_bytes);
}

TEST_F(MoveBlockTest, ADemotionEncodesAndReportsTheError) {
  const Place hot = Put(CodecId::kRaw16);
  const Place warm = NewPlace(1);
  ASSERT_TRUE(MoveBlock(MoveFrom(hot, CodecId::kKv4p, warm), scratch_, outcome_).ok());
  EXPECT_EQ(outcome_.codec, CodecId::kKv4p);
  EXPECT_GT(outcome_.k_error, 0);
  EXPECT_GT(outcome_.v_error, 0);
  EXPECT_EQ(outcome_.encoded_bytes, raw_.size());
  EXPECT_EQ(ImageAt(warm), CopyOf(EncodeOwned(*FindCodec(CodecId::kKv4p), identity_, raw_)->bytes));
}

TEST_F(MoveBlockTest, APromotionTripChangesNoByte) {
  const Place int4 = Put(CodecId::kKv4p);
  const Place down = NewPlace(1), up = NewPlace(0), again = NewPlace(1);
  ASSERT_TRUE(MoveBlock(MoveFrom(int4, CodecId::kKv2p, down), scratch_, outcome_).ok());
  const std::vector<std::byte> int2 = ImageAt(down);
  // Hot asks for raw16, warm for int4: the int2 image stays what it is.
  ASSERT_TRUE(MoveBlock(MoveFrom(down, CodecId::kRaw16, up), scratch_, outcome_).ok());
  EXPECT_EQ(outcome_.codec, CodecId::kKv2p);
  EXPECT_EQ(outcome_.encoded_bytes, 0u);
  EXPECT_EQ(ImageAt(up), int2);
  ASSERT_TRUE(MoveBlock(MoveFrom(up, CodecId::kKv4p, again), scratch_, outcome_).ok());
  EXPECT_EQ(ImageAt(again), int2);
  EXPECT_EQ(int2, CopyOf(EncodeOwned(*FindCodec(CodecId::kKv2p), identity_, raw_)->bytes));
}

TEST_F(MoveBlockTest, AShortTailStaysRaw) {
  identity_ = MakeIdentity(22, SmallShape(2));
  raw_ = RandomRaw(identity_.shape, 22);
  const Place place = Put(CodecId::kKv4p);
  EXPECT_EQ(outcome_.codec, CodecId::kRaw16);
  ASSERT_TRUE(MoveBlock(MoveFrom(place, CodecId::kKv2p, NewPlace(1)), scratch_, outcome_).ok());
  EXPECT_EQ(outcome_.codec, CodecId::kRaw16);
}

TEST_F(MoveBlockTest, ABlockWithARawLayerSaysSo) {
  Store16(raw_.data(), kFp16Infinity);
  Put(CodecId::kKv4p);
  EXPECT_TRUE(outcome_.any_raw_layer);
}

TEST_F(MoveBlockTest, S17_ATargetThatIsTooSmallIsNamedAndLeavesTheSourceAsItWas) {
  const Place hot = Put(CodecId::kRaw16);
  const std::vector<std::byte> before = CopyOf(BytesAt(hot));
  Place small = NewPlace(1);
  small.bytes = 4096;
  EXPECT_EQ(MoveBlock(MoveFrom(hot, CodecId::kRaw16, small), scratch_, outcome_).code(), Code::kOutOfRange);
  EXPECT_EQ(outcome_.needed_bytes, ImageAt(hot).size());
  EXPECT_EQ(outcome_.codec, CodecId::kNone);
  EXPECT_EQ(CopyOf(BytesAt(hot)), before);
  small.epoch = ++epoch_;
  EXPECT_EQ(MoveBlock(PutOrder(CodecId::kRaw16, small), scratch_, outcome_).code(), Code::kOutOfRange);
  EXPECT_EQ(outcome_.needed_bytes, ImageAt(hot).size());
}

TEST_F(MoveBlockTest, S02_EveryFailedLegLeavesNoOutcomeAndTheSourceByteIdentical) {
  using Call = FaultyMedium::Call;
  using Fault = FaultyMedium::Fault;
  struct Leg {
    bool on_source;
    Call call;
    Fault fault;
    Code expected;
  };
  const Leg legs[] = {
      {true, Call::kRead, Fault::kError, Code::kUnavailable},
      {true, Call::kRead, Fault::kShort, Code::kDataLoss},
      {true, Call::kRead, Fault::kFlipBit, Code::kDataLoss},
      {false, Call::kBeginWrite, Fault::kError, Code::kUnavailable},
      {false, Call::kFinishWrite, Fault::kError, Code::kUnavailable},
  };
  for (CodecId codec : {CodecId::kRaw16, CodecId::kKv4p}) {
    const Place hot = Put(CodecId::kRaw16);
    const std::vector<std::byte> before = CopyOf(BytesAt(hot));
    const uint64_t some_part_byte = ParseImage(before)->layout.layers[1][0].offset + 100;
    // A short read must cut into the image: the slot is larger.
    Place source = hot;
    source.bytes = AlignUp(outcome_.image_bytes, kSlotAlign);
    for (const Leg& leg : legs) {
      SCOPED_TRACE(testing::Message() << "leg " << (&leg - legs) << ", codec " << FindCodec(codec)->name);
      FaultyMedium faulty(store_);
      faulty.Arm(leg.call, leg.fault, 1, some_part_byte);
      MoveOrder order = MoveFrom(source, codec, NewPlace(1));
      (leg.on_source ? order.source_medium : order.target_medium) = &faulty;
      EXPECT_EQ(MoveBlock(order, scratch_, outcome_).code(), leg.expected);
      EXPECT_TRUE(faulty.fired());
      EXPECT_EQ(outcome_.codec, CodecId::kNone);
      EXPECT_EQ(outcome_.image_bytes, 0u);
      EXPECT_EQ(CopyOf(BytesAt(hot)), before);
      // The same move works right after.
      EXPECT_TRUE(MoveBlock(MoveFrom(source, codec, NewPlace(1)), scratch_, outcome_).ok());
    }
  }
}

TEST_F(MoveBlockTest, S01_AFailedStoreIsNoBlock) {
  using Call = FaultyMedium::Call;
  for (Call call : {Call::kBeginWrite, Call::kFinishWrite}) {
    FaultyMedium faulty(store_);
    faulty.Arm(call, FaultyMedium::Fault::kError);
    MoveOrder order = PutOrder(CodecId::kRaw16, NewPlace(0));
    order.target_medium = &faulty;
    EXPECT_EQ(MoveBlock(order, scratch_, outcome_).code(), Code::kUnavailable);
    EXPECT_EQ(outcome_.codec, CodecId::kNone);
  }
  // Of a store that never came to its end nothing is readable as the block.
  const Place unwritten = NewPlace(0);
  AlignedBuffer bounce;
  ASSERT_TRUE(store_.BeginWrite(unwritten, bounce).ok());
  EXPECT_FALSE(VerifyBlock(identity_, unwritten, {}, store_, scratch_, outcome_).ok());
}

TEST_F(MoveBlockTest, TheWrongBlockAtTheSourceIsDataLoss) {
  const Place hot = Put(CodecId::kRaw16);
  MoveOrder order = MoveFrom(hot, CodecId::kKv4p, NewPlace(1));
  order.identity.key.bytes[5] ^= std::byte{1};
  EXPECT_EQ(MoveBlock(order, scratch_, outcome_).code(), Code::kDataLoss);
  order = MoveFrom(hot, CodecId::kKv4p, NewPlace(1));
  order.identity.name_space.bytes[5] ^= std::byte{1};
  EXPECT_EQ(MoveBlock(order, scratch_, outcome_).code(), Code::kDataLoss);
}

TEST_F(MoveBlockTest, S15_AMoveLeavesItsSourceByteIdentical) {
  const Place hot = Put(CodecId::kRaw16);
  const std::vector<std::byte> before = CopyOf(BytesAt(hot));
  for (CodecId codec : {CodecId::kRaw16, CodecId::kKv4p, CodecId::kKv42, CodecId::kKv2p}) {
    ASSERT_TRUE(MoveBlock(MoveFrom(hot, codec, NewPlace(1)), scratch_, outcome_).ok());
    EXPECT_EQ(CopyOf(BytesAt(hot)), before);
    EXPECT_EQ(store_.ReadEpoch({0}, hot.slot).value(), hot.epoch);
  }
}

TEST_F(MoveBlockTest, ScratchKeepsWhatTheLastMoveNeededUntilItIsTrimmed) {
  constexpr uint64_t kLarge = 64 << 20;
  ASSERT_TRUE(scratch_.source.Reserve(kLarge).ok());
  ASSERT_TRUE(scratch_.writes.base.Reserve(kLarge).ok());
  Put(CodecId::kRaw16);
  // Neither was used: they stay, as after a move of a large block.
  EXPECT_EQ(scratch_.source.span().size(), kLarge);
  EXPECT_EQ(scratch_.writes.base.span().size(), kLarge);
  ASSERT_TRUE(scratch_.source.Reserve(1).ok());
  Put(CodecId::kRaw16);
  EXPECT_EQ(scratch_.source.span().size(), kRetainedBounceBytes) << "a small one has used it since";
  scratch_.Trim();
  EXPECT_EQ(scratch_.writes.base.span().size(), kRetainedBounceBytes);
}

}  // namespace
}  // namespace kvtier
