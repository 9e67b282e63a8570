#include <set>

#include "codecs/image_layout.h"
#include "tests/engine/ladder_fixture.h"
#include "tiers/cold_store.h"
#include "tiers/cold_tail.h"
#include "tiers/segment_allocator.h"

namespace kvtier {
namespace {

constexpr size_t kK = TailIndex(ColdPart::kKTail), kV = TailIndex(ColdPart::kVTail);
constexpr TierId kCold{1};

EngineHarness::Options TwoTiers(uint64_t cold_bytes, uint64_t segment_bytes,
                                uint64_t warm_bytes = 64 * kKiB) {
  TierOptions cold = ColdTier("cold", cold_bytes, segment_bytes, CodecId::kKv2p);
  cold.keep_tails = true;
  return {.tiers = {HostTier("warm", warm_bytes, CodecId::kKv4p), std::move(cold)},
          .limits = {.lease_share = 1.0}};
}

class ColdPartsTest : public testing::Test, protected LadderFixture {
 protected:
  ColdPartsTest() : LadderFixture(TwoTiers(kMiB, 64 * kKiB)) {}
  ~ColdPartsTest() override { harness.engine().CheckInvariants(); }

  const TierMetrics& Cold() { return harness.metrics().tier[kCold.value]; }
  /// Stored durably, and nowhere but on the cold tier.
  void StoreCold(uint64_t first, uint64_t count) {
    PutCodes(first, count, Durability::kDurable);
    ASSERT_TRUE(WaitLast().ok());
    Reboot();
  }
  void Reboot() {
    harness.Restart();
    Begin();
  }
  Precision PrecisionOf(uint64_t block, uint64_t lease) {
    const AcquireReply reply = *Acquire(lease, block, 1);
    if (reply.run.empty()) return Precision::kNone;
    EXPECT_EQ(OwnerAt(reply.run[0].place), block);
    return reply.run[0].precision;
  }
};

TEST_F(ColdPartsTest, S71_ABlockComesBackExactWhileItsTailsAreThere) {
  PutCodes(1, 4, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  EXPECT_EQ(Cold().tails_written[kK].Get(), 4u);
  EXPECT_EQ(Cold().tails_written[kV].Get(), 4u);
  EXPECT_EQ(Cold().blocks[static_cast<size_t>(Precision::kInt4)].Get(), 4);
  Reboot();
  EXPECT_EQ(Cold().blocks[static_cast<size_t>(Precision::kInt4)].Get(), 4);
  for (uint64_t block = 1; block <= 4; ++block) EXPECT_EQ(PrecisionOf(block, block), Precision::kInt4);
}

TEST_F(ColdPartsTest, S71_ADamagedTailCostsTheRungNotTheBlock) {
  StoreCold(1, 2);
  const uint64_t used = TierNumbers()[1].used_bytes;
  harness.fake().tail_read_fault = [](const Place& place) { return place.part == ColdPart::kVTail; };
  EXPECT_EQ(PrecisionOf(1, 1), Precision::kK4V2);
  EXPECT_EQ(Cold().tails_damaged[kV].Get(), 1u);
  EXPECT_EQ(Cold().blocks[static_cast<size_t>(Precision::kK4V2)].Get(), 1);
  EXPECT_LT(TierNumbers()[1].used_bytes, used);
  harness.fake().tail_read_fault = [](const Place& place) { return place.part == ColdPart::kKTail; };
  EXPECT_EQ(PrecisionOf(2, 2), Precision::kInt2);
  EXPECT_EQ(Cold().tails_damaged[kK].Get(), 1u);
  EXPECT_EQ(Cold().blocks[static_cast<size_t>(Precision::kInt2)].Get(), 1);
  EXPECT_EQ(harness.metrics().quarantined_blocks.Get(), 0u);
  // What was given up is not there after a restart either.
  harness.fake().tail_read_fault = nullptr;
  Reboot();
  EXPECT_EQ(PrecisionOf(1, 3), Precision::kK4V2);
  EXPECT_EQ(PrecisionOf(2, 4), Precision::kInt2);
}

TEST_F(ColdPartsTest, S42_AFullDiskMakesDoWithTheSegmentsThatItHas) {
  std::set<uint32_t> files;
  uint32_t refused = 0;
  const auto is_full = [&](const Place& place) {
    if (files.contains(place.container)) return false;
    if (files.size() >= 4) return ++refused > 0;
    files.insert(place.container);
    return false;
  };
  harness.fake().tail_write_fault = is_full;
  harness.fake().tail_write_code = Code::kResourceExhausted;
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    const bool to_cold = move != nullptr && move->order.target.tier == kCold;
    return to_cold && is_full(move->order.target) ? std::optional(Status(Code::kResourceExhausted, "ENOSPC"))
                                                  : std::nullopt;
  };
  for (uint64_t i = 1; i <= 200; ++i) ASSERT_EQ(PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
  EXPECT_EQ(files.size(), 4u);
  EXPECT_GT(refused, 0u);
  EXPECT_LT(refused, 40u) << "segments without a file are left alone for a while";
  EXPECT_EQ(Cold().circuit_open.Get(), 0);
  EXPECT_GT(TierNumbers()[1].used_bytes, 0u);
  harness.engine().CheckInvariants();
  PutCodes(300, 2, Durability::kDurable);
  const Result<PutReply> synced = WaitLast();
  for (const PutOutcome& outcome : synced->blocks) EXPECT_EQ(outcome.code, Code::kOk);
}

TEST_F(ColdPartsTest, S71_ARungThatNoCopyHasIsAMiss) {
  StoreCold(1, 1);
  harness.fake().tail_read_fault = [](const Place& place) { return place.part == ColdPart::kVTail; };
  EXPECT_EQ(PrecisionOf(1, 1), Precision::kK4V2);
  Reboot();
  struct Acquire acquire;
  acquire.session = session;
  acquire.model = model;
  acquire.lease = LeaseId{2};
  acquire.keys = {MakeKey(1)};
  acquire.min_precision = Precision::kInt4;
  const AcquireReply reply = *harness.Call<AcquireReply>(std::move(acquire));
  EXPECT_TRUE(reply.run.empty());
  EXPECT_EQ(reply.stopped_by, Code::kNotFound);
}

TEST_F(ColdPartsTest, S71_AByteLimitOrANearDeadlineReadsTheBaseAloneAndMinPrecisionReadsMore) {
  StoreCold(1, 3);
  const auto read = [&](uint64_t block, uint64_t max_bytes, Precision least, Duration within) {
    struct Acquire acquire;
    acquire.session = session;
    acquire.model = model;
    acquire.lease = LeaseId{harness.next_ticket++};
    acquire.keys = {MakeKey(block)};
    acquire.max_block_bytes = max_bytes;
    acquire.min_precision = least;
    const LeaseId lease = acquire.lease;
    const AcquireReply reply = *harness.Call<AcquireReply>(std::move(acquire), within);
    const Precision precision = reply.run.empty() ? Precision::kNone : reply.run[0].precision;
    EXPECT_TRUE(harness.ReleaseLease(session, lease.value).ok() || reply.run.empty());
    return precision;
  };
  const Duration enough = std::chrono::milliseconds(100);
  const BlockShape shape = ShapeOf(spec, spec.tokens_per_block, static_cast<uint16_t>(spec.tokens_per_block));
  const uint64_t k4v2_bytes = PlainImageBytes(*FindCodec(CodecId::kKv42), shape);
  EXPECT_EQ(read(2, k4v2_bytes, Precision::kNone, enough), Precision::kK4V2);
  EXPECT_EQ(read(3, k4v2_bytes - 64, Precision::kNone, enough), Precision::kInt2);
  EXPECT_EQ(read(1, 0, Precision::kNone, std::chrono::milliseconds(2)), Precision::kInt2);
  // The tails are still there for who asks for more than the copy that was read has.
  EXPECT_EQ(read(3, 0, Precision::kInt4, enough), Precision::kInt4);
  EXPECT_EQ(read(3, 1, Precision::kNone, enough), Precision::kInt4);  // a host copy costs no read
}

TEST_F(ColdPartsTest, VerifyDropsADamagedTailAndKeepsTheBlock) {
  StoreCold(1, 3);
  harness.fake().tail_read_fault = [](const Place& place) { return place.part == ColdPart::kKTail; };
  const VerifyReply verified = *harness.Call<VerifyReply>(AdminVerify{kCold, {}}, std::chrono::seconds(5));
  EXPECT_EQ(verified.checked, 3u);
  EXPECT_EQ(verified.corrupt, 3u);
  EXPECT_EQ(Hits(1, 3), 3u);
  EXPECT_EQ(Cold().blocks[static_cast<size_t>(Precision::kInt2)].Get(), 3);
}

TEST_F(ColdPartsTest, ATailThatCannotBeWrittenCostsTheTailOnly) {
  harness.fake().tail_write_fault = [](const Place& place) { return place.part == ColdPart::kKTail; };
  PutCodes(1, 2, Durability::kDurable);
  const Result<PutReply> synced = WaitLast();
  for (const PutOutcome& outcome : synced->blocks) EXPECT_EQ(outcome.code, Code::kOk);
  EXPECT_EQ(Cold().blocks[static_cast<size_t>(Precision::kInt2)].Get(), 2);
  EXPECT_EQ(Cold().part_bytes[IndexOf(ColdPart::kKTail)].Get(), 0);
  EXPECT_EQ(Cold().part_bytes[IndexOf(ColdPart::kVTail)].Get(), 0);
}

TEST_F(ColdPartsTest, AFloorAboveInt2KeepsTheBlockInOneImage) {
  Put put;
  put.session = session;
  put.model = model;
  put.ticket = TicketId{harness.next_ticket++};
  put.durability = Durability::kDurable;
  put.floor = Precision::kK4V2;
  put.blocks.push_back(harness.ChainBlock(spec, 1));
  ASSERT_TRUE(harness.Call<PutReply>(std::move(put)).ok());
  ASSERT_TRUE(WaitLast().ok());
  EXPECT_EQ(Cold().tails_written[kK].Get(), 0u);
  Reboot();
  EXPECT_GE(PrecisionOf(1, 1), Precision::kK4V2);
}

TEST_F(ColdPartsTest, S13_RemovedBlocksLeaveNoTails) {
  PutCodes(1, 20, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  EXPECT_GT(Cold().part_bytes[IndexOf(ColdPart::kVTail)].Get(), 0);
  ASSERT_TRUE(harness.Call<uint64_t>(Remove{session, model, {}, {}}, std::chrono::seconds(5)).ok());
  harness.Settle();
  for (int part = 0; part < kColdParts; ++part) EXPECT_EQ(Cold().part_bytes[part].Get(), 0) << part;
  Reboot();
  EXPECT_EQ(Hits(1, 20), 0u);
  EXPECT_EQ(TierNumbers()[1].used_bytes, 0u);
}

/// The mix of rungs that a tier of so many bits for each element of the live set comes to.
class ColdMixTest : public testing::Test {
 protected:
  static constexpr uint64_t kBlocks = 480;

  ColdMixTest() {
    spec_.layers = 8;
    spec_.kv_heads = 4;
    spec_.k_dim = spec_.v_dim = 128;
    spec_.boost_channels = DefaultBoost(spec_.k_dim);
    spec_.tokens_per_block = 128;
    const BlockShape shape = ShapeOf(spec_, spec_.tokens_per_block, 128);
    elements_ = RawBlockBytes(shape) / 2;
    base_bytes_ = ColdRecordBytes(PlainImageBytes(*FindCodec(CodecId::kKv2p), shape));
    segment_bytes_ = kColdSegmentHeaderBytes + 12 * base_bytes_;
  }

  /// Puts the live set on a tier whose usable space has so many bits for each of its elements.
  void Fill(double bits) {
    const double usable = bits * static_cast<double>(elements_ * kBlocks) / 8;
    const auto segments = static_cast<uint64_t>(usable / static_cast<double>(segment_bytes_));
    uint64_t capacity = (segments + kReservedColdSegments) * segment_bytes_;
    while (ColdSegmentLimit(capacity, segment_bytes_) < segments + kReservedColdSegments) capacity += kMiB;
    ladder_ = std::make_unique<LadderFixture>(TwoTiers(capacity, segment_bytes_, 64 * kMiB));
    ladder_->spec = spec_;
    ladder_->spec.model_id = "large";
    ladder_->model = ladder_->harness.Register(ladder_->session, ladder_->spec);
    const TierMetrics& cold = ladder_->harness.metrics().tier[1];
    for (uint64_t block = 1; block <= kBlocks; ++block) {
      const uint64_t gone = cold.evicted_capacity.Get();
      ASSERT_EQ(ladder_->PutCodes(block, 1, Durability::kDurable), std::vector<Code>{Code::kOk}) << block;
      ASSERT_TRUE(ladder_->WaitLast().ok());
      if (cold.evicted_capacity.Get() == gone) continue;
      EXPECT_EQ(cold.part_bytes[IndexOf(ColdPart::kKTail)].Get(), 0) << "a block went before the tails";
      EXPECT_EQ(cold.part_bytes[IndexOf(ColdPart::kVTail)].Get(), 0) << "a block went before the tails";
    }
    ladder_->harness.engine().CheckInvariants();
    blocks_ = ladder_->TierNumbers()[1].blocks;
  }
  uint64_t Blocks(Precision precision) const { return blocks_[static_cast<size_t>(precision)]; }

  ModelSpec spec_ = TinyModel();
  uint64_t elements_ = 0, base_bytes_ = 0, segment_bytes_ = 0;
  std::unique_ptr<LadderFixture> ladder_;
  std::array<uint64_t, 6> blocks_{};
};

TEST_F(ColdMixTest, S71_WithFiveBitsAllBlocksAreExactInt4) {
  Fill(5.0);
  EXPECT_EQ(Blocks(Precision::kInt4), kBlocks);
}

TEST_F(ColdMixTest, S71_WithThreeAndAHalfBitsAllBlocksAreThereAndMostAtK4V2) {
  Fill(3.5);
  EXPECT_EQ(Blocks(Precision::kInt2) + Blocks(Precision::kK4V2) + Blocks(Precision::kInt4), kBlocks);
  EXPECT_GE(Blocks(Precision::kK4V2) + Blocks(Precision::kInt4), kBlocks * 65 / 100);
  RecordProperty("k4v2", static_cast<int>(Blocks(Precision::kK4V2)));
  RecordProperty("int4", static_cast<int>(Blocks(Precision::kInt4)));
}

TEST_F(ColdMixTest, S71_WithLessThanTheBasesNeedBlocksGoAndTailsBeforeThem) {
  Fill(2.4);
  EXPECT_LT(Blocks(Precision::kInt2), kBlocks);
  EXPECT_GE(Blocks(Precision::kInt2), kBlocks * 3 / 4);
  EXPECT_EQ(Blocks(Precision::kK4V2) + Blocks(Precision::kInt4), 0u);
}

}  // namespace
}  // namespace kvtier
