#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

/// Hot holds a few blocks, warm some more, cold a lot.
EngineHarness::Options ThreeTiers() {
  return {.tiers = {HostTier("hot", 64 * kKiB, CodecId::kRaw16), HostTier("warm", 64 * kKiB, CodecId::kKv4p),
                    ColdTier("cold", kMiB, 128 * kKiB, CodecId::kKv2p)},
          .limits = {.lease_share = 1.0}};
}

class AcquireTest : public testing::Test, protected LadderFixture {
 protected:
  AcquireTest() : LadderFixture(ThreeTiers()) {}
  ~AcquireTest() override { harness.engine().CheckInvariants(); }

  /// Puts `count` blocks one by one, so that the first of them go all the way down.
  void Fill(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(PutCodes(first + i, 1), std::vector<Code>{Code::kOk});
  }
  TierId TierOf(uint64_t block) {
    return harness.LookupKeys(session, model, {MakeKey(block)})->run.at(0).tier;
  }
};

TEST_F(AcquireTest, BlocksGoDownTheLadderAndEveryTierServesThem) {
  Fill(1, 40);
  EXPECT_EQ(TierOf(40), TierId{0});
  EXPECT_EQ(TierOf(1), TierId{2});
  std::set<uint8_t> served;
  for (uint64_t i = 40; i >= 1; --i) {
    const AcquireReply reply = *Acquire(i, i, 1);
    ASSERT_EQ(reply.run.size(), 1u) << "block " << i;
    EXPECT_EQ(OwnerAt(reply.run[0].place), i);
    served.insert(reply.run[0].served_from.value);
    ASSERT_TRUE(harness.ReleaseLease(session, i).ok());
  }
  EXPECT_EQ(served, (std::set<uint8_t>{0, 1, 2}));
  EXPECT_GT(harness.metrics().moves[0][1].requantized.Get(), 0u);
  EXPECT_GT(harness.metrics().moves[1][2].requantized.Get(), 0u);
  EXPECT_EQ(harness.metrics().moves[2][1].requantized.Get(), 0u);  // promotion never decodes
}

TEST_F(AcquireTest, S04_ABlockThatIsBeingStoredIsPendingAndNeverTorn) {
  Put put;
  put.session = session;
  put.model = model;
  put.ticket = TicketId{500};
  put.blocks.push_back(harness.ChainBlock(spec, 1));
  harness.Send(std::move(put));
  std::vector<Code> codes;
  const auto acquire_once = [&](uint64_t lease) {
    kvtier::Acquire acquire;
    acquire.session = session;
    acquire.model = model;
    acquire.lease = LeaseId{lease};
    acquire.keys = {MakeKey(1)};
    acquire.reply = [&](const Result<AcquireReply>& reply) {
      codes.push_back(reply->stopped_by);
      for (const AcquiredBlock& block : reply->run) EXPECT_EQ(OwnerAt(block.place), 1u);
    };
    harness.Send(std::move(acquire));
  };
  for (uint64_t lease = 1; lease < 12; ++lease) {
    acquire_once(lease);
    harness.StepOnly();
    harness.HoldJobs();
    if (lease % 3 == 0 && harness.held() > 0) harness.RunHeld(0);
  }
  harness.Settle();
  ASSERT_EQ(codes.size(), 11u);
  EXPECT_EQ(codes.front(), Code::kPending);
  EXPECT_EQ(codes.back(), Code::kOk);
}

TEST_F(AcquireTest, S09_OneBatchsKeysProtectEachOther) {
  Fill(1, 40);
  // The newest are in hot and the oldest cold: bringing the cold ones up may not drive out the hot ones.
  std::vector<Key> keys;
  for (const uint64_t i : {39u, 40u, 1u, 2u, 3u, 4u, 38u}) keys.push_back(MakeKey(i));
  const AcquireReply reply = *harness.AcquireKeys(session, model, 1, keys);
  ASSERT_EQ(reply.run.size(), keys.size());
  const uint64_t owners[] = {39, 40, 1, 2, 3, 4, 38};
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(OwnerAt(reply.run[i].place), owners[i]);
}

TEST_F(AcquireTest, S60_FiftyReadersOfAColdBlockAreOneReadOfTheDevice) {
  Fill(1, 40);
  std::vector<SessionId> sessions;
  for (uint64_t i = 2; i < 52; ++i) {
    sessions.push_back(harness.Open(i));
    harness.Register(sessions.back(), spec);
  }
  ASSERT_EQ(sessions.size(), 50u);
  const uint64_t before = harness.fake().moves();
  size_t reads = 0, served = 0;
  harness.fake().job_fault = [&reads](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    reads += move != nullptr && !move->order.staged && move->order.source.tier == TierId{2};
    return std::nullopt;
  };
  for (const SessionId id : sessions) {
    kvtier::Acquire acquire;
    acquire.session = id;
    acquire.model = model;
    acquire.lease = LeaseId{1};
    acquire.keys = {MakeKey(1)};
    acquire.reply = [&served](const Result<AcquireReply>& reply) { served += reply->run.size(); };
    harness.Send(std::move(acquire));
  }
  harness.Settle();
  EXPECT_EQ(served, sessions.size());
  EXPECT_EQ(reads, 1u);
  EXPECT_EQ(harness.metrics().moves[2][1].blocks.Get(), 1u);
  EXPECT_LE(harness.fake().moves() - before, 3u);  // the read, and room for it
}

TEST_F(AcquireTest, S43_ACorruptBlockIsOneMissAndQuarantined) {
  Fill(1, 40);
  const auto listed = harness.Call<std::vector<BlockStats>>(ListBlocks{model, {}, 100, {}});
  ASSERT_EQ(listed->size(), 40u);
  harness.fake().job_fault = [](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (move == nullptr || move->order.identity.key != MakeKey(2)) return std::nullopt;
    return Status(Code::kDataLoss, "corrupt");
  };
  const AcquireReply reply = *Acquire(1, 1, 3);
  EXPECT_EQ(reply.run.size(), 1u);  // the request completes up to it
  EXPECT_EQ(reply.stopped_by, Code::kNotFound);
  EXPECT_EQ(harness.metrics().quarantined_blocks.Get(), 1u);
  EXPECT_EQ(harness.metrics().tier[2].checksum_failures.Get(), 1u);
  EXPECT_EQ(harness.metrics().tier[2].evicted_corrupt.Get(), 1u);
  EXPECT_EQ(Hits(2, 1), 0u);
  EXPECT_EQ(Hits(3, 1), 1u);
}

TEST_F(AcquireTest, S48_ABlockThatALookupReportsIsThereOrATypedError) {
  Fill(1, 40);
  harness.fake().job_fault = [](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (move == nullptr || move->order.staged) return std::nullopt;
    return Status(Code::kUnavailable, "the device is gone");
  };
  for (uint64_t i = 1; i <= 40; ++i) {
    ASSERT_EQ(Hits(i, 1), 1u);
    const AcquireReply reply = *Acquire(i, i, 1);
    if (reply.run.empty()) {
      EXPECT_EQ(reply.stopped_by, Code::kUnavailable);
      continue;
    }
    EXPECT_EQ(OwnerAt(reply.run[0].place), i);
    ASSERT_TRUE(harness.ReleaseLease(session, i).ok());
  }
  EXPECT_GT(harness.metrics().tier[2].read_errors.Get(), 0u);
}

TEST_F(AcquireTest, S02_AFailedDemotionLeavesTheBlockWhereItWas) {
  Fill(1, 4);
  harness.fake().job_fault = [](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (move == nullptr || move->order.staged) return std::nullopt;
    return Status(Code::kInternal, "injected");
  };
  EXPECT_EQ(*harness.Call<uint64_t>(AdminDemote{TierId{0}, 4, {}}), 0u);
  for (uint64_t i = 1; i <= 4; ++i) {
    EXPECT_EQ(TierOf(i), TierId{0});
    EXPECT_EQ(OwnerAt(Acquire(i, i, 1)->run[0].place), i);
  }
  EXPECT_EQ(harness.metrics().moves[0][1].failed.Get(), 4u);
  EXPECT_EQ(TierNumbers()[1].used_bytes, 0u);
}

TEST_F(AcquireTest, AtTheDeadlineTheUnbrokenRunThatIsReadyComesBack) {
  Fill(1, 40);
  kvtier::Acquire acquire;
  acquire.session = session;
  acquire.model = model;
  acquire.lease = LeaseId{1};
  acquire.keys = {MakeKey(40), MakeKey(1), MakeKey(39)};
  std::optional<AcquireReply> answer;
  acquire.reply = [&answer](const Result<AcquireReply>& reply) { answer = *reply; };
  harness.Send(std::move(acquire), std::chrono::milliseconds(5));
  harness.StepOnly();
  harness.HoldJobs();  // the device hangs
  EXPECT_FALSE(answer.has_value());
  harness.clock().Advance(std::chrono::milliseconds(6));
  harness.StepOnly();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->run.size(), 1u);
  EXPECT_EQ(answer->stopped_by, Code::kDeadlineExceeded);
  harness.Settle();
}

TEST_F(AcquireTest, AReaderThatWantsMorePrecisionThanThereIsMisses) {
  Fill(1, 40);
  kvtier::Acquire acquire;
  acquire.session = session;
  acquire.model = model;
  acquire.lease = LeaseId{1};
  acquire.keys = {MakeKey(1)};
  acquire.min_precision = Precision::kInt4;
  const AcquireReply reply = *harness.Call<AcquireReply>(std::move(acquire));
  EXPECT_TRUE(reply.run.empty());
  EXPECT_EQ(reply.stopped_by, Code::kNotFound);
}

TEST_F(AcquireTest, AFloorKeepsABlockAbovePrecisionsOfLowerTiers) {
  for (uint64_t i = 1; i <= 40; ++i) {
    Put put;
    put.session = session;
    put.model = model;
    put.ticket = TicketId{1000 + i};
    put.floor = i == 1 ? Precision::kInt4 : Precision::kNone;
    put.blocks.push_back(harness.ChainBlock(spec, i));
    ASSERT_TRUE(harness.Call<PutReply>(std::move(put)).ok());
  }
  EXPECT_EQ(TierOf(1), TierId{2});
  EXPECT_EQ(Acquire(1, 1, 1)->run[0].precision, Precision::kInt4);
  EXPECT_EQ(Acquire(2, 2, 1)->run[0].precision, Precision::kInt2);
}

TEST_F(AcquireTest, PrefetchBringsBlocksUpAndItsTicketEnds) {
  Fill(1, 40);
  ASSERT_EQ(TierOf(1), TierId{2});
  const uint32_t started = *harness.Call<uint32_t>(
      Prefetch{session, model, TicketId{900}, TierId{1}, harness.ChainKeysOf(1, 2), {}});
  EXPECT_EQ(started, 2u);
  EXPECT_TRUE(harness.Call<PutReply>(WaitTicket{session, TicketId{900}, {}}).ok());
  EXPECT_EQ(TierOf(1), TierId{1});
  EXPECT_EQ(harness.metrics().prefetch_moved.Get(), 2u);
  EXPECT_EQ(harness.Call<Done>(Cancel{session, TicketId{901}, {}}).status().code(), Code::kStale);
}

TEST_F(AcquireTest, AnAcquireOfNothingGrantsNoLease) {
  const AcquireReply reply = *Acquire(1, 500, 3);
  EXPECT_TRUE(reply.run.empty());
  EXPECT_EQ(harness.ReleaseLease(session, 1).status().code(), Code::kStale);
  EXPECT_EQ(harness.metrics().leases_granted.Get(), 0u);
}

TEST(LeaseShare, OfATierIsNotSpentByWhatIsPromisedOnAnother) {
  LadderFixture ladder(
      {.tiers = {HostTier("hot", 256 * kKiB, CodecId::kRaw16), HostTier("warm", 2 * kMiB, CodecId::kRaw16),
                 ColdTier("cold", 8 * kMiB, 256 * kKiB, CodecId::kRaw16)},
       .limits = {.lease_share = 0.25}});
  constexpr uint64_t kCold = 30;  // more than the share of hot, less than that of warm
  for (uint64_t number = 1; number <= kCold; ++number) ladder.PutCodes(number, 1);
  for (const uint8_t from : {0, 1})
    ladder.harness.Call<uint64_t>(AdminDemote{.from = TierId{from}, .count = kCold, .reply = {}}).value();
  ladder.harness.Settle();
  ladder.PutCodes(kCold + 1, 1);
  const auto found =
      ladder.harness.LookupKeys(ladder.session, ladder.model, ladder.harness.ChainKeysOf(1, kCold + 1));
  ASSERT_EQ(found->run.size(), kCold + 1);
  ASSERT_EQ(found->run.front().tier, TierId{2});
  ASSERT_EQ(found->run.back().tier, TierId{0});
  EXPECT_EQ(ladder.Acquire(1, 1, kCold + 1)->run.size(), kCold + 1);
}

TEST(ReadAhead, WhatFollowsAFullLeaseComesUpMeanwhileAndNoMore) {
  LadderFixture ladder({.tiers = {HostTier("warm", 512 * kKiB, CodecId::kRaw16),
                                  ColdTier("cold", 8 * kMiB, 256 * kKiB, CodecId::kRaw16)},
                        .limits = {.lease_share = 0.05}});
  for (uint64_t number = 1; number <= 100; ++number) ladder.PutCodes(number, 1);
  ladder.harness.Settle();
  const auto cold = [&](uint64_t first, uint64_t count) {
    const auto reply =
        ladder.harness.LookupKeys(ladder.session, ladder.model, ladder.harness.ChainKeysOf(first, count));
    return std::ranges::count_if(reply->run, [](const auto& block) { return block.tier == TierId{1}; });
  };
  constexpr uint64_t kAsked = 40;
  ASSERT_EQ(cold(1, kAsked), kAsked) << "the oldest have gone down";
  const AcquireReply reply = *ladder.Acquire(1, 1, kAsked);
  ASSERT_EQ(reply.stopped_by, Code::kResourceExhausted);
  const uint64_t next = 1 + reply.run.size();
  ASSERT_LT(next + kReadAheadBlocks, kAsked);
  ladder.harness.Settle();
  EXPECT_EQ(cold(next, kReadAheadBlocks), 0);
  EXPECT_EQ(cold(next + kReadAheadBlocks, 1), 1);
  ladder.harness.engine().CheckInvariants();
}

TEST(ReadAhead, NothingIsReadAheadOfALeaseThatHoldsAll) {
  LadderFixture ladder({.tiers = {HostTier("warm", 512 * kKiB, CodecId::kRaw16),
                                  ColdTier("cold", 8 * kMiB, 256 * kKiB, CodecId::kKv2p)},
                        .limits = {.lease_share = 1.0}});
  for (uint64_t number = 1; number <= 60; ++number) ladder.PutCodes(number, 1);
  ladder.harness.Settle();
  ASSERT_EQ(ladder.Acquire(1, 1, 2)->run.size(), 2u);
  ladder.harness.Settle();
  EXPECT_EQ(ladder.harness.metrics().moves[1][0].blocks.Get(), 2u);
}

}  // namespace
}  // namespace kvtier
