#include "tiers/cold_tail.h"

#include <gtest/gtest.h>

#include "tests/support/arena_slot.h"
#include "tests/support/faulty_block_io.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"
#include "tests/tiers/cold_parts.h"
#include "tiers/arena_store.h"

namespace kvtier {
namespace {

constexpr size_t kK = TailIndex(ColdPart::kKTail), kV = TailIndex(ColdPart::kVTail);

/// Blocks in base, K tail and V tail, on a store in a folder; read back into a host arena.
class ColdTailTest : public ColdStoreTest {
 protected:
  static constexpr ArenaSpec kArena{
      .id = {1}, .tier = {0}, .tenant = {1}, .slots = 2, .slot_bytes = uint64_t{1} << 20};

  void SetUp() override {
    ColdStoreTest::SetUp();
    scratch_.io = io_.get();
    ASSERT_TRUE(arenas_.Create(kArena).ok());
  }
  WrittenParts StoreParts(const PartsBlock& block) {
    const WrittenParts parts = WriteParts(*store_, *io_, allocator_, block).value();
    KVTIER_CHECK(CommitParts(*store_, *io_, parts).ok());
    return parts;
  }
  /// The image that a promotion brings into slot 0; its codec stands in outcome_.
  Result<std::vector<std::byte>> Promote(const PartsBlock& block, const Place& base,
                                         const TailPlaces& tails) {
    MoveOrder order;
    order.identity = block.identity;
    order.source = base;
    order.source_tails = tails;
    order.source_medium = store_.get();
    order.target = SlotOf(kArena, 0);
    order.target_medium = &arenas_;
    order.codec = FindCodec(CodecId::kKv4p);
    KVTIER_TRY(MoveBlock(order, scratch_, outcome_));
    return SlotImage(0);
  }
  std::vector<std::byte> SlotImage(uint32_t slot) {
    AlignedBuffer bounce;
    const auto bytes = arenas_.Read(SlotOf(kArena, slot), *io_, bounce).value();
    const ImageView image = ParseImage(bytes).value();
    return {image.bytes.begin(), image.bytes.end()};
  }
  void FlipInRecord(const Place& place, uint64_t byte, int bit = 3) {
    FlipBit(SegmentPath(place.container), place.offset + byte, bit);
  }

  ArenaStore arenas_;
  MoveScratch scratch_;
  MoveOutcome outcome_;
};

TEST_F(ColdTailTest, S71_ABlockReadsAsTheBestRungOfItsParts) {
  const PartsBlock block = MakePartsBlock(9);
  const WrittenParts parts = StoreParts(block);
  ASSERT_EQ(parts.tails.size(), 2u);
  EXPECT_EQ(Promote(block, parts.base.place, parts.places).value(), RungBytes(block, CodecId::kKv4p));
  EXPECT_EQ(outcome_.codec, CodecId::kKv4p);
  EXPECT_EQ(Promote(block, parts.base.place, {parts.places[kK], {}}).value(),
            RungBytes(block, CodecId::kKv42));
  EXPECT_EQ(outcome_.codec, CodecId::kKv42);
  EXPECT_EQ(Promote(block, parts.base.place, {}).value(), RungBytes(block, CodecId::kKv2p));
  EXPECT_EQ(outcome_.codec, CodecId::kKv2p);
  // V alone completes nothing.
  EXPECT_EQ(Promote(block, parts.base.place, TailPlaces{Place{}, parts.places[kV]}).value(),
            RungBytes(block, CodecId::kKv2p));
}

TEST_F(ColdTailTest, S71_RealKvComesBackAsTheVeryInt4ImageThatWasPut) {
  for (const char* name : {"qwen2.5-coder-0.5b", "smollm2-135m"}) {
    SCOPED_TRACE(name);
    const Fixture fixture = Fixture::Load(TestDataFolder() + "/" + name).value();
    for (uint32_t first = 0; first < fixture.tokens(); first += 128) {
      PartsBlock block = MakePartsBlock(1000 + first);
      block.identity.shape = fixture.Shape(128, /*nraw=*/first == 0);
      block.raw = fixture.RawBlock(first, 128);
      const WrittenParts parts = StoreParts(block);
      ASSERT_EQ(parts.tails.size(), 2u);
      EXPECT_EQ(Promote(block, parts.base.place, parts.places).value(), RungBytes(block, CodecId::kKv4p));
      EXPECT_LT(outcome_.k_error, parts.base.k_error);
      EXPECT_FLOAT_EQ(outcome_.k_error, parts.tails[kK].k_error);
      EXPECT_FLOAT_EQ(outcome_.v_error, parts.tails[kV].v_error);
      ASSERT_TRUE(store_->Erase({&parts.base, 1}, *io_).ok());
      ASSERT_TRUE(store_->Erase(parts.tails, *io_).ok());
    }
  }
}

TEST_F(ColdTailTest, S71_AnImageOfAnyRungGoesDownInTheTailsThatItHas) {
  const PartsBlock block = MakePartsBlock(10);
  for (const CodecId codec :
       {CodecId::kRaw16, CodecId::kKv8, CodecId::kKv4p, CodecId::kKv42, CodecId::kKv2p}) {
    SCOPED_TRACE(FindCodec(codec)->name);
    MoveOrder put = PartsOrder(block, *store_, allocator_);
    put.target = SlotOf(kArena, 1);
    put.target_tails = {};
    put.target_medium = &arenas_;
    put.codec = FindCodec(codec == CodecId::kKv8 || codec == CodecId::kRaw16 ? codec : CodecId::kKv4p);
    ASSERT_TRUE(MoveBlock(put, scratch_, outcome_).ok());
    MoveOrder down = PartsOrder(block, *store_, allocator_);
    down.staged.reset();
    down.source = SlotOf(kArena, 1);
    down.source_medium = &arenas_;
    if (codec == CodecId::kKv42 || codec == CodecId::kKv2p) {
      MoveOrder cut = down;
      cut.target = SlotOf(kArena, 0);
      cut.target_tails = {};
      cut.target_medium = &arenas_;
      cut.codec = FindCodec(codec);
      ASSERT_TRUE(MoveBlock(cut, scratch_, outcome_).ok());
      down.source = SlotOf(kArena, 0);
    }
    ASSERT_TRUE(MoveBlock(down, scratch_, outcome_).ok());
    const WrittenParts parts = PartsOf(down, outcome_);
    const CodecId best = codec == CodecId::kKv42 || codec == CodecId::kKv2p ? codec : CodecId::kKv4p;
    EXPECT_EQ(parts.tails.size(), best == CodecId::kKv4p ? 2u : best == CodecId::kKv42 ? 1u : 0u);
    const std::vector<std::byte> image = Promote(block, down.target, parts.places).value();
    EXPECT_EQ(outcome_.codec, best);
    if (codec == CodecId::kKv8) continue;  // encoded from other values
    EXPECT_EQ(image, RungBytes(block, best));
  }
}

TEST_F(ColdTailTest, S71_ALayerThatIsRawHasNoTail) {
  PartsBlock block = MakePartsBlock(11);
  block.raw[1] = std::byte{0x7C};  // the first element of layer 0 is infinite
  MoveOrder order = PartsOrder(block, *store_, allocator_);
  ASSERT_EQ(MoveBlock(order, scratch_, outcome_).code(), Code::kOutOfRange);
  order.target = allocator_.Next(outcome_.needed_bytes);
  ASSERT_TRUE(MoveBlock(order, scratch_, outcome_).ok());
  EXPECT_TRUE(outcome_.any_raw_layer);
  const WrittenParts parts = PartsOf(order, outcome_);
  ASSERT_EQ(parts.tails.size(), 2u);
  EXPECT_LT(parts.tails[kK].image_bytes, PlainTailBytes(block.identity.shape, ColdPart::kKTail));
  EXPECT_EQ(Promote(block, order.target, parts.places).value(), RungBytes(block, CodecId::kKv4p));
}

TEST_F(ColdTailTest, S71_ADamagedTailCostsTheRungNotTheBlock) {
  UseBufferedIo();  // the test writes to the file beside the store
  const PartsBlock block = MakePartsBlock(12);
  const WrittenParts parts = StoreParts(block);
  const auto flips = [](const ColdRecord& record, auto check) {
    const uint64_t payload_end = kColdRecordHeaderBytes + record.image_bytes;
    for (uint64_t byte = 0; byte < payload_end; byte += byte < 640 ? 13 : 997) check(byte);
  };
  flips(parts.tails[kV], [&](uint64_t byte) {
    FlipInRecord(parts.places[kV], byte);
    EXPECT_EQ(Promote(block, parts.base.place, parts.places).value(), RungBytes(block, CodecId::kKv42))
        << byte;
    EXPECT_EQ(outcome_.source_tails[kV], Code::kDataLoss) << byte;
    EXPECT_EQ(outcome_.source_tails[kK], Code::kOk) << byte;
    FlipInRecord(parts.places[kV], byte);
  });
  flips(parts.tails[kK], [&](uint64_t byte) {
    FlipInRecord(parts.places[kK], byte);
    EXPECT_EQ(Promote(block, parts.base.place, parts.places).value(), RungBytes(block, CodecId::kKv2p))
        << byte;
    EXPECT_EQ(outcome_.source_tails[kK], Code::kDataLoss) << byte;
    EXPECT_EQ(outcome_.source_tails[kV], Code::kOk) << byte;
    ASSERT_TRUE(
        VerifyBlock(block.identity, parts.base.place, parts.places, *store_, scratch_, outcome_).ok());
    EXPECT_EQ(outcome_.source_tails[kK], Code::kDataLoss) << byte;
    FlipInRecord(parts.places[kK], byte);
  });
  flips(parts.base, [&](uint64_t byte) {
    FlipInRecord(parts.base.place, byte);
    // Of the base all counts but the boost, which the K tail replaces.
    const Result<std::vector<std::byte>> image = Promote(block, parts.base.place, parts.places);
    EXPECT_TRUE(!image.ok() || *image == RungBytes(block, CodecId::kKv4p)) << byte;
    FlipInRecord(parts.base.place, byte);
  });
  EXPECT_EQ(Promote(block, parts.base.place, parts.places).value(), RungBytes(block, CodecId::kKv4p));
}

TEST_F(ColdTailTest, S71_ATailThatCannotBeReadCostsTheRungNotTheBlock) {
  const PartsBlock block = MakePartsBlock(13);
  const WrittenParts parts = StoreParts(block);
  for (const uint64_t nth : {1, 2, 3}) {
    FaultyBlockIo faulty(*io_);
    faulty.FailNth(IoRequest::Op::kRead, nth, StatusFromErrno(EIO, "read"));
    scratch_.io = &faulty;
    const Result<std::vector<std::byte>> image = Promote(block, parts.base.place, parts.places);
    if (nth == 1) {
      EXPECT_EQ(image.status().code(), Code::kUnavailable);
      continue;
    }
    EXPECT_EQ(image.value(), RungBytes(block, nth == 2 ? CodecId::kKv2p : CodecId::kKv42));
    EXPECT_EQ(outcome_.source_tails[nth == 2 ? kK : kV], Code::kUnavailable);
  }
}

TEST_F(ColdTailTest, BaseAndTailsAreOneSubmissionEachWay) {
  const PartsBlock block = MakePartsBlock(17);
  StoreParts(MakePartsBlock(18));  // the segments are there
  FaultyBlockIo counting(*io_);
  const WrittenParts parts = WriteParts(*store_, counting, allocator_, block).value();
  EXPECT_EQ(counting.submissions(), std::vector<size_t>{3});
  scratch_.io = &counting;
  EXPECT_EQ(Promote(block, parts.base.place, parts.places).value(), RungBytes(block, CodecId::kKv4p));
  EXPECT_EQ(counting.submissions(), (std::vector<size_t>{3, 3}));
}

TEST_F(ColdTailTest, ATailThatCannotBeWrittenCostsTheRungNotTheBlock) {
  const PartsBlock block = MakePartsBlock(14);
  StoreParts(MakePartsBlock(15));  // the segments are there
  for (const uint64_t nth : {1, 2, 3}) {
    FaultyBlockIo faulty(*io_);
    faulty.FailNth(IoRequest::Op::kWrite, nth, StatusFromErrno(ENOSPC, "write"));
    const Result<WrittenParts> parts = WriteParts(*store_, faulty, allocator_, block);
    EXPECT_EQ(parts.ok(), nth > 1);
    if (nth == 1) continue;
    EXPECT_EQ(parts->tails.size(), nth - 2);
    EXPECT_EQ(Promote(block, parts->base.place, parts->places).value(),
              RungBytes(block, nth == 2 ? CodecId::kKv2p : CodecId::kKv42));
  }
}

TEST_F(ColdTailTest, S71_ATailOfAnotherEncodingOfTheKeyIsNeverUsed) {
  const PartsBlock first = MakePartsBlock(16, 0), second = MakePartsBlock(16, 1);
  const WrittenParts old_parts = StoreParts(first), new_parts = StoreParts(second);
  EXPECT_EQ(Promote(second, new_parts.base.place, old_parts.places).value(),
            RungBytes(second, CodecId::kKv2p));
  EXPECT_EQ(outcome_.source_tails[kK], Code::kDataLoss);
  EXPECT_EQ(outcome_.source_tails[kV], Code::kDataLoss);
  EXPECT_EQ(Promote(second, new_parts.base.place, {new_parts.places[kK], old_parts.places[kV]}).value(),
            RungBytes(second, CodecId::kKv42));
  // Nor does a K tail pass for a V tail.
  EXPECT_EQ(Promote(second, new_parts.base.place, {new_parts.places[kK], new_parts.places[kK]}).value(),
            RungBytes(second, CodecId::kKv42));
}

TEST_F(ColdTailTest, S44_EveryFlippedBitOfATailIsDetected) {
  const PartsBlock block = MakePartsBlock(17);
  const std::vector<std::byte> int4 = RungBytes(block, CodecId::kKv4p);
  AlignedBuffer image_memory, tail_memory;
  const std::span<std::byte> image_bytes = image_memory.Reserve(int4.size()).value();
  std::copy(int4.begin(), int4.end(), image_bytes.begin());
  const ImageView image = ParseImage(image_bytes.first(int4.size())).value();
  const std::span<std::byte> room =
      tail_memory.Reserve(PlainTailBytes(block.identity.shape, ColdPart::kVTail)).value();
  const BuiltImage built = WriteTail(image, ColdPart::kVTail, room);
  ASSERT_TRUE(built.status.ok());
  const std::span<std::byte> tail = room.first(built.image_bytes);
  const uint64_t head_bytes = AlignUp(kImageHeaderBytes + 3 * sizeof(TailEntry), kImageAlign);
  for (uint64_t bit = 0; bit < tail.size() * 8; bit += bit < head_bytes * 8 ? 1 : 61) {
    tail[bit / 8] ^= std::byte{1} << bit % 8;
    const Result<TailView> parsed = ParseTail(tail);
    EXPECT_FALSE(parsed.ok() && VerifyTail(*parsed).ok()) << "bit " << bit;
    tail[bit / 8] ^= std::byte{1} << bit % 8;
  }
  EXPECT_TRUE(VerifyTail(ParseTail(tail).value()).ok());
  for (uint64_t bytes = 0; bytes < tail.size(); bytes += bytes < head_bytes ? 1 : 1000) {
    EXPECT_EQ(ParseTail(tail.first(bytes)).status().code(), Code::kDataLoss) << bytes;
  }
}

class ColdTailRecoveryTest : public ColdTailTest {
 protected:
  void ExpectRung(const PartsBlock& block, uint64_t seed, CodecId codec) {
    const RecoveredBlock* found = Recovered(seed);
    ASSERT_NE(found, nullptr);
    const TailPlaces tails = {found->k_tail.place, found->v_tail.place};
    EXPECT_EQ(Promote(block, found->place, tails).value(), RungBytes(block, codec));
    EXPECT_EQ(outcome_.codec, codec);
  }
};

TEST_F(ColdTailRecoveryTest, TailsAreFoundWithAndWithoutTheIndex) {
  const PartsBlock block = MakePartsBlock(20);
  const WrittenParts parts = StoreParts(block);
  const auto check = [&] {
    EXPECT_EQ(recovery_.orphan_tails, 0u);
    ExpectRung(block, 20, CodecId::kKv4p);
    const RecoveredBlock& found = *Recovered(20);
    EXPECT_EQ(found.k_tail.place, parts.places[kK]);
    EXPECT_EQ(found.v_tail.place, parts.places[kV]);
    EXPECT_EQ(found.k_tail.error, parts.tails[kK].k_error);
    EXPECT_EQ(found.v_tail.error, parts.tails[kV].v_error);
    EXPECT_GT(found.k_tail.error, 0);
    EXPECT_LT(found.k_tail.error, found.k_error);
    for (const RecoveredSegment& segment : recovery_.segments) ASSERT_TRUE(segment.part.has_value());
  };
  Reopen();
  check();
  LoseIndex();
  check();
  EXPECT_EQ(recovery_.scanned_records, 3u);
  CrashAndReopen();
  check();
}

TEST_F(ColdTailRecoveryTest, ATailWithoutItsBaseIsDroppedForGood) {
  const PartsBlock block = MakePartsBlock(21);
  const WrittenParts parts = WriteParts(*store_, *io_, allocator_, block).value();
  for (const ColdRecord& tail : parts.tails) ASSERT_TRUE(store_->Commit({&tail, 1}, *io_).ok());
  ASSERT_TRUE(store_->Erase({&parts.base, 1}, *io_).ok());  // the base was never committed
  Reopen();
  EXPECT_EQ(Recovered(21), nullptr);
  EXPECT_EQ(recovery_.orphan_tails, 2u);
  LoseIndex();
  EXPECT_EQ(recovery_.orphan_tails, 0u);
}

TEST_F(ColdTailRecoveryTest, S71_AScanMatchesTailsToTheBaseOfTheirOwnEncodingOnly) {
  const PartsBlock first = MakePartsBlock(22, 0), second = MakePartsBlock(22, 1);
  StoreParts(first);
  // The second put leaves its base; its tails did not find room.
  const WrittenParts parts = WriteParts(*store_, *io_, allocator_, second).value();
  ASSERT_TRUE(store_->Erase(parts.tails, *io_).ok());
  ASSERT_TRUE(store_->Commit({&parts.base, 1}, *io_).ok());
  LoseIndex();
  ExpectRung(second, 22, CodecId::kKv2p);
  EXPECT_EQ(recovery_.orphan_tails, 2u);
  LoseIndex();
  EXPECT_EQ(recovery_.orphan_tails, 0u);
}

TEST_F(ColdTailRecoveryTest, ANewerTailDoesNotTakeThePlaceOfTheOneThatFits) {
  const PartsBlock first = MakePartsBlock(23, 0), second = MakePartsBlock(23, 1);
  StoreParts(first);
  // Killed before the second base was written: its tails are there.
  const WrittenParts parts = WriteParts(*store_, *io_, allocator_, second).value();
  ASSERT_TRUE(store_->Erase({&parts.base, 1}, *io_).ok());
  LoseIndex();
  ExpectRung(first, 23, CodecId::kKv4p);
}

TEST_F(ColdTailRecoveryTest, S13_ErasedAndRecycledTailsAreGone) {
  const PartsBlock block = MakePartsBlock(24);
  const WrittenParts parts = StoreParts(block);
  ASSERT_TRUE(store_->Erase({&parts.tails[kV], 1}, *io_).ok());
  Reopen();
  ExpectRung(block, 24, CodecId::kKv42);
  ASSERT_TRUE(store_->RecycleSegment(parts.places[kK].container, 99, *io_).ok());
  Reopen();
  ExpectRung(block, 24, CodecId::kKv2p);
  EXPECT_EQ(recovery_.orphan_tails, 0u);
}

}  // namespace
}  // namespace kvtier
