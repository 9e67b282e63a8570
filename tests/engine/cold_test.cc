#include "daemon/engine/circuit.h"
#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

constexpr TierId kCold{2};

EngineHarness::Options ThreeTiers(uint64_t cold_bytes = kMiB) {
  return {.tiers = {HostTier("hot", 64 * kKiB, CodecId::kRaw16), HostTier("warm", 64 * kKiB, CodecId::kKv4p),
                    ColdTier("cold", cold_bytes, 64 * kKiB, CodecId::kKv2p)},
          .limits = {.lease_share = 1.0}};
}

std::optional<Status> IfCommit(const ColdJob& job, Code code) {
  if (!std::holds_alternative<CommitJob>(job.work)) return std::nullopt;
  return Status(code, "injected");
}

class ColdTest : public testing::Test, protected LadderFixture {
 protected:
  ColdTest() : LadderFixture(ThreeTiers()) {}
  ~ColdTest() override { harness.engine().CheckInvariants(); }
};

TEST_F(ColdTest, ADurablePutIsFoundAfterARestart) {
  EXPECT_EQ(PutCodes(1, 4, Durability::kDurable), std::vector<Code>(4, Code::kOk));
  const Result<PutReply> synced = WaitLast();
  ASSERT_TRUE(synced.ok());
  for (const PutOutcome& outcome : synced->blocks) EXPECT_EQ(outcome.code, Code::kOk);
  PutCodes(50, 2);  // not durable
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(1, 4), 4u);
  EXPECT_EQ(Hits(50, 1), 0u);
  const AcquireReply reply = *Acquire(1, 1, 4);
  ASSERT_EQ(reply.run.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(OwnerAt(reply.run[i].place), i + 1);
    EXPECT_EQ(reply.run[i].precision, Precision::kInt4);  // durable is INT4 whatever the tier makes of others
    EXPECT_EQ(reply.run[i].served_from, kCold);
  }
}

TEST(ColdRecovery, ARecordTooLargeForTheBooksIsAMiss) {
  constexpr uint64_t kSegment = 512 * kMiB;
  LadderFixture ladder({.tiers = {HostTier("hot", 64 * kKiB, CodecId::kRaw16),
                                  ColdTier("cold", 4 * kSegment, kSegment, CodecId::kKv4p)},
                        .limits = {.lease_share = 1.0}});
  EXPECT_EQ(ladder.PutCodes(1, 3, Durability::kDurable), std::vector<Code>(3, Code::kOk));
  ASSERT_TRUE(ladder.WaitLast().ok());
  ladder.harness.at_restart = [](std::vector<ColdRecovery>& recovery) {
    for (RecoveredBlock& block : recovery[1].blocks) {
      if (block.identity.key != MakeKey(2)) continue;
      block.place.offset = kSegment / 4;
      block.place.bytes = kMaxPlaceBytes + kSlotAlign;
    }
    recovery[1].segments.front().used_bytes = kSegment;
  };
  ladder.harness.Restart();
  ladder.Begin();
  EXPECT_EQ(ladder.Hits(1, 1), 1u);
  EXPECT_EQ(ladder.Hits(2, 1), 0u);
  EXPECT_EQ(ladder.Hits(3, 1), 1u);
  ladder.harness.engine().CheckInvariants();
}

TEST_F(ColdTest, BlocksOfDurablePutsThatDoNotBecomeDurableAreCounted) {
  harness.fake().cold_fault = [](const ColdJob& job) { return IfCommit(job, Code::kResourceExhausted); };
  EXPECT_EQ(PutCodes(1, 4, Durability::kDurable), std::vector<Code>(4, Code::kOk));
  ASSERT_TRUE(WaitLast().ok());
  EXPECT_EQ(harness.metrics().puts_not_durable.Get(), 4u);
  // Its circuit is open now: the tier is not even asked.
  PutCodes(5, 2, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  EXPECT_EQ(harness.metrics().puts_not_durable.Get(), 6u);
  harness.fake().cold_fault = nullptr;
  harness.Advance(2 * kCircuitOpenFor);
  PutCodes(7, 1, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  EXPECT_EQ(harness.metrics().puts_not_durable.Get(), 6u);
  PutCodes(8, 1);
  EXPECT_EQ(harness.metrics().puts_not_durable.Get(), 6u);
}

TEST(ColdRecovery, MemoryForReadersIsMadeAtStart) {
  LadderFixture ladder(
      {.tiers = {HostTier("hot", 4 * kMiB, CodecId::kRaw16), HostTier("warm", 4 * kMiB, CodecId::kKv4p),
                 ColdTier("cold", kMiB, 64 * kKiB, CodecId::kKv2p)}});
  EXPECT_EQ(ladder.PutCodes(1, 3, Durability::kDurable), std::vector<Code>(3, Code::kOk));
  ASSERT_TRUE(ladder.WaitLast().ok());
  std::vector<uint8_t> made;
  ladder.harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    if (const auto* create = std::get_if<CreateArenaJob>(&job.work)) made.push_back(create->spec.tier.value);
    return std::nullopt;
  };
  ladder.harness.Restart();
  ladder.Begin();
  EXPECT_EQ(made, std::vector<uint8_t>{1});
  EXPECT_EQ(ladder.Acquire(1, 1, 3)->run.size(), 3u);
  EXPECT_EQ(made.size(), 1u) << "a reader waited for memory of its own";
  ladder.harness.engine().CheckInvariants();
}

TEST_F(ColdTest, RecoveredTailsHangOnTheirParents) {
  PutCodes(1, 1, Durability::kDurable);
  PutBlock tail = harness.ChainBlock(spec, 2);
  tail.tokens = 10;
  tail.source = OwnedSource(spec, 10, 77);
  Put put;
  put.session = session;
  put.model = model;
  put.ticket = TicketId{harness.next_ticket++};
  put.durability = Durability::kDurable;
  put.blocks.push_back(std::move(tail));
  ASSERT_TRUE(harness.Call<PutReply>(std::move(put)).ok());
  ASSERT_TRUE(WaitLast().ok());
  harness.Restart();
  Begin();
  const LookupReply reply = *harness.LookupKeys(session, model, {MakeKey(1)});
  ASSERT_EQ(reply.tails.size(), 1u);
  EXPECT_EQ(reply.tails[0].key, MakeKey(2));
}

TEST_F(ColdTest, S01_ABlockWhoseCommitFailsIsNeverReadableFromTheColdTier) {
  harness.fake().cold_fault = [](const ColdJob& job) { return IfCommit(job, Code::kUnavailable); };
  EXPECT_EQ(PutCodes(1, 2, Durability::kDurable), std::vector<Code>(2, Code::kOk));  // stored in memory
  const Result<PutReply> synced = WaitLast();
  for (const PutOutcome& outcome : synced->blocks) EXPECT_EQ(outcome.code, Code::kUnavailable);
  EXPECT_EQ(TierNumbers()[2].used_bytes, 0u);
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(1, 1), 0u);
}

TEST_F(ColdTest, ReadsOvertakeWritesThatNobodyWaitsFor) {
  PutCodes(1, 3, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  harness.Restart();
  Begin();
  PutCodes(10, 3);
  std::vector<bool> writes_cold;  // of the jobs, in the order in which workers get them
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    writes_cold.push_back(move != nullptr && move->order.target.tier == kCold);
    return std::nullopt;
  };
  Put durable;
  durable.session = session;
  durable.model = model;
  durable.ticket = TicketId{harness.next_ticket++};
  durable.durability = Durability::kDurable;
  for (uint64_t number = 10; number < 13; ++number)
    durable.blocks.push_back(harness.ChainBlock(spec, number));
  harness.Send(std::move(durable));
  kvtier::Acquire read;
  read.session = session;
  read.model = model;
  read.lease = LeaseId{2};
  read.keys = harness.ChainKeysOf(1, 2);
  harness.Send(std::move(read));
  harness.StepOnly();
  harness.HoldJobs();
  for (size_t left = harness.held(); left > 0; --left) harness.RunHeld(0);
  const auto first_write = std::find(writes_cold.begin(), writes_cold.end(), true);
  EXPECT_NE(first_write, writes_cold.begin()) << "the reads' jobs were ordered later and come first";
  EXPECT_EQ(std::count(first_write, writes_cold.end(), false), 0);
  EXPECT_EQ(std::count(first_write, writes_cold.end(), true), 3);
}

TEST_F(ColdTest, ADurablePutOfAPresentBlockIsMadeDurable) {
  PutCodes(1, 2);
  EXPECT_EQ(PutCodes(1, 2, Durability::kDurable), std::vector<Code>(2, Code::kAlreadyExists));
  ASSERT_TRUE(WaitLast().ok());
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(1, 2), 2u);
}

TEST_F(ColdTest, ARemovedBlockIsNotFoundAfterARestart) {
  PutCodes(1, 2, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  EXPECT_EQ(*harness.Call<uint64_t>(Remove{session, model, {MakeKey(1)}, {}}), 1u);
  harness.Settle();
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(1, 1), 0u);
  EXPECT_EQ(Hits(2, 1), 1u);
}

TEST_F(ColdTest, S40_ARemovalIsAnsweredWhenNoCrashCanBringTheBlockBack) {
  PutCodes(1, 2, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  std::optional<Result<uint64_t>> answer;
  harness.Send(Remove{session, model, {MakeKey(1)}, [&](Result<uint64_t> result) { answer = result; }});
  harness.StepOnly();
  EXPECT_FALSE(answer.has_value());
  harness.Restart();  // killed before the answer: the block may be back
  Begin();
  EXPECT_EQ(Hits(1, 1), 1u);

  harness.Send(Remove{session, model, {MakeKey(2)}, [&](Result<uint64_t> result) { answer = result; }});
  for (int steps = 0; steps < 100 && !answer; ++steps) harness.StepOnce();
  ASSERT_TRUE(answer.has_value() && answer->ok());
  EXPECT_EQ(**answer, 1u);
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(2, 1), 0u);
}

TEST_F(ColdTest, S40_ClearingAModelIsAnsweredWhenNoCrashCanBringABlockBack) {
  PutCodes(1, 20, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  std::optional<Result<uint64_t>> answer;
  harness.Send(Remove{session, model, {}, [&](Result<uint64_t> result) { answer = result; }});
  for (int steps = 0; steps < 100 && !answer; ++steps) harness.StepOnce();
  ASSERT_TRUE(answer.has_value() && answer->ok());
  EXPECT_EQ(**answer, 20u);
  harness.Restart();
  Begin();
  for (uint64_t i = 1; i <= 20; ++i) EXPECT_EQ(Hits(i, 1), 0u) << i;
}

TEST_F(ColdTest, S40_ARemovalWaitsForACopyThatIsBeingWritten) {
  PutCodes(1, 1);
  harness.Send(Remove{session, model, {MakeKey(2)}, {}});  // nothing to do
  harness.Settle();
  Put put;
  put.session = session;
  put.model = model;
  put.ticket = TicketId{harness.next_ticket++};
  put.durability = Durability::kDurable;
  put.blocks.push_back(harness.ChainBlock(spec, 1));
  harness.Send(std::move(put));
  harness.StepOnly();
  harness.HoldJobs();  // the move to the cold tier
  ASSERT_GT(harness.held(), 0u);
  std::optional<Result<uint64_t>> answer;
  harness.Send(Remove{session, model, {MakeKey(1)}, [&](Result<uint64_t> result) { answer = result; }});
  harness.StepOnly();
  EXPECT_FALSE(answer.has_value());
  while (harness.held() > 0) harness.RunHeld(0);
  for (int steps = 0; steps < 100 && !answer; ++steps) harness.StepOnce();
  ASSERT_TRUE(answer.has_value() && answer->ok());
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(1, 1), 0u);
}

TEST_F(ColdTest, ARemovalThatTheDeviceDoesNotTakeSaysSo) {
  PutCodes(1, 2, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  harness.fake().cold_fault = [](const ColdJob& job) -> std::optional<Status> {
    if (!std::holds_alternative<EraseJob>(job.work)) return std::nullopt;
    return Status(Code::kUnavailable, "injected");
  };
  const Result<uint64_t> removed = harness.Call<uint64_t>(Remove{session, model, {MakeKey(1)}, {}});
  EXPECT_EQ(removed.status().code(), Code::kAborted);
  EXPECT_EQ(Hits(1, 1), 0u);
  harness.fake().cold_fault = nullptr;
  EXPECT_EQ(*harness.Call<uint64_t>(Remove{session, model, {MakeKey(2)}, {}}), 1u);
}

TEST_F(ColdTest, ARemovalEndsAtItsDeadlineWhereTheDeviceHangs) {
  PutCodes(1, 1, Durability::kDurable);
  ASSERT_TRUE(WaitLast().ok());
  std::optional<Result<uint64_t>> answer;
  harness.Send(Remove{session, model, {MakeKey(1)}, [&](Result<uint64_t> result) { answer = result; }});
  harness.StepOnly();
  harness.HoldJobs();
  harness.clock().Advance(std::chrono::milliseconds(200));
  harness.StepOnly();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status().code(), Code::kDeadlineExceeded);
}

TEST_F(ColdTest, AFullColdTierRecyclesItsOldestSegmentsAndCountsWhatGoes) {
  for (uint64_t i = 1; i <= 600; ++i) ASSERT_EQ(PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
  EXPECT_GT(harness.fake().recycles(), 1u);
  EXPECT_GT(harness.metrics().tier[2].evicted_capacity.Get(), 0u);
  EXPECT_EQ(Hits(1, 1), 0u);
  EXPECT_EQ(Hits(600, 1), 1u);
  uint64_t found = 0;
  for (uint64_t i = 1; i <= 600; ++i) found += Hits(i, 1);
  EXPECT_EQ(found + harness.metrics().tier[2].evicted_capacity.Get(), 600u);
  EXPECT_GT(harness.metrics().evicted_then_requested.Get(), 0u);
}

TEST_F(ColdTest, ADeviceThatFailsIsLeftAloneAndTriedAgain) {
  bool broken = true;
  uint32_t tries = 0;
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (move == nullptr || move->order.target.tier != kCold) return std::nullopt;
    ++tries;
    return broken ? std::optional(Status(Code::kUnavailable, "EIO")) : std::nullopt;
  };
  for (uint64_t i = 1; i <= 100; ++i) ASSERT_EQ(PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
  EXPECT_LE(tries, 8u);  // those under way when it broke, then none
  EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 1);
  EXPECT_FALSE(TierNumbers()[2].accepts_writes);
  EXPECT_GT(harness.metrics().tier[1].evicted_capacity.Get(), 0u);  // what cannot go down is evicted
  EXPECT_EQ(Hits(100, 1), 1u);

  tries = 0;
  harness.Advance(std::chrono::milliseconds(1100));
  for (uint64_t i = 200; i <= 230; ++i) PutCodes(i, 1);
  EXPECT_EQ(tries, 1u);  // one probe, which fails
  broken = false;
  harness.Advance(std::chrono::milliseconds(1100));
  for (uint64_t i = 300; i <= 330; ++i) PutCodes(i, 1);
  EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 0);
  EXPECT_GT(TierNumbers()[2].used_bytes, 0u);
}

TEST_F(ColdTest, VerifyFindsAndQuarantinesACorruptBlock) {
  for (uint64_t i = 1; i <= 40; ++i) PutCodes(i, 1);
  harness.fake().job_fault = [](const Job& job) -> std::optional<Status> {
    const auto* verify = std::get_if<VerifyJob>(&job.work);
    if (verify == nullptr || verify->identity.key != MakeKey(2)) return std::nullopt;
    return Status(Code::kDataLoss, "flipped bit");
  };
  const Result<VerifyReply> verified =
      harness.Call<VerifyReply>(AdminVerify{kCold, {}}, std::chrono::seconds(5));
  ASSERT_TRUE(verified.ok());
  EXPECT_GT(verified->checked, 10u);
  EXPECT_EQ(verified->corrupt, 1u);
  EXPECT_EQ(verified->corrupt_keys, std::vector<Key>{MakeKey(2)});
  EXPECT_EQ(Hits(2, 1), 0u);
  EXPECT_EQ(harness.metrics().quarantined_blocks.Get(), 1u);
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(2, 1), 0u);
}

TEST_F(ColdTest, DrainBringsEverythingToTheColdTierAndTakesNoMorePuts) {
  PutCodes(1, 6);
  EXPECT_EQ(*harness.Call<uint64_t>(AdminDrain{}, std::chrono::seconds(5)), 6u);
  EXPECT_EQ(PutCodes(50, 1), std::vector<Code>{Code::kUnavailable});
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(1, 6), 6u);
}

TEST_F(ColdTest, WithoutAHostSlotAPutGoesToTheColdTierAtOnce) {
  uint64_t next = 1;
  // Lease every slot of both host tiers.
  for (; next < 60; ++next) {
    const PutReply reply = *harness.PutChain(session, model, spec, next, 1);
    ASSERT_EQ(reply.blocks[0].code, Code::kOk);
    if (reply.blocks[0].tier == kCold) break;
    ASSERT_EQ(Acquire(next, next, 1)->run.size(), 1u);
  }
  EXPECT_LT(next, 60u);
  EXPECT_EQ(Hits(next, 1), 1u);
  EXPECT_EQ(Acquire(next, next, 1)->stopped_by, Code::kResourceExhausted);
}

}  // namespace
}  // namespace kvtier
