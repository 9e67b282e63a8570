#include <gmock/gmock.h>

#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

EngineHarness::Options OneTier() {
  return {.tiers = {HostTier("hot", kMiB, CodecId::kRaw16)}};
}

class PutTest : public testing::Test, protected LadderFixture {
 protected:
  PutTest() : LadderFixture(OneTier()) {}
  ~PutTest() override { harness.engine().CheckInvariants(); }

  Put PutOf(std::vector<PutBlock> blocks) {
    Put put;
    put.session = session;
    put.model = model;
    put.ticket = TicketId{harness.next_ticket++};
    put.blocks = std::move(blocks);
    return put;
  }
  Code PutOne(PutBlock block) { return harness.Call<PutReply>(PutOf({std::move(block)}))->blocks[0].code; }
};

TEST_F(PutTest, StoresBlocksThatAnAcquireFinds) {
  EXPECT_EQ(PutCodes(1, 4), std::vector<Code>(4, Code::kOk));
  const Result<AcquireReply> acquired = Acquire(1, 1, 5);
  ASSERT_TRUE(acquired.ok());
  ASSERT_EQ(acquired->run.size(), 4u);
  EXPECT_EQ(acquired->stopped_by, Code::kNotFound);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(OwnerAt(acquired->run[i].place), i + 1);
    EXPECT_EQ(acquired->run[i].precision, Precision::kBits16);
  }
}

TEST_F(PutTest, S17_ARefusedPutLeavesTheStateAsItWas) {
  PutCodes(1, 2);
  const std::vector<TierStats> before = TierNumbers();
  const uint64_t entries = harness.metrics().table_entries.Get();
  PutBlock no_tokens = harness.ChainBlock(spec, 10);
  no_tokens.tokens = 0;
  EXPECT_EQ(PutOne(no_tokens), Code::kInvalidArgument);
  PutBlock crooked = harness.ChainBlock(spec, 10);
  crooked.first_position += 1;
  EXPECT_EQ(PutOne(crooked), Code::kInvalidArgument);
  PutBlock short_source = harness.ChainBlock(spec, 10);
  short_source.source.raw = short_source.source.raw.first(100);
  EXPECT_EQ(PutOne(short_source), Code::kOutOfRange);
  PutBlock own_parent = harness.ChainBlock(spec, 10);
  own_parent.parent = own_parent.key;
  EXPECT_EQ(PutOne(own_parent), Code::kInvalidArgument);
  const std::vector<TierStats> after = TierNumbers();
  EXPECT_EQ(after[0].used_bytes, before[0].used_bytes);
  EXPECT_EQ(after[0].blocks, before[0].blocks);
  EXPECT_EQ(harness.metrics().table_entries.Get(), static_cast<int64_t>(entries));
  EXPECT_EQ(harness.metrics().puts_rejected.Get(), 4u);
}

TEST_F(PutTest, S23_TheSameKeyTwiceIsPresentAndKeepsTheFirstBytes) {
  PutCodes(1, 1);
  PutBlock again = harness.ChainBlock(spec, 1);
  again.source = OwnedSource(spec, again.tokens, 999);
  EXPECT_EQ(PutOne(again), Code::kAlreadyExists);
  EXPECT_EQ(OwnerAt(Acquire(1, 1, 1)->run[0].place), 1u);
  EXPECT_EQ(harness.metrics().puts_present.Get(), 1u);
}

TEST_F(PutTest, S23_TheSameKeyWithAnotherPlaceInTheSequenceIsRefusedAndCounted) {
  PutCodes(1, 1);
  PutBlock moved = harness.ChainBlock(spec, 1);
  moved.first_position += spec.tokens_per_block;
  EXPECT_EQ(PutOne(moved), Code::kInvalidArgument);
  PutBlock adopted = harness.ChainBlock(spec, 1);
  adopted.parent = MakeKey(77);
  EXPECT_EQ(PutOne(adopted), Code::kInvalidArgument);
  PutBlock shorter = harness.ChainBlock(spec, 1);
  shorter.tokens = 8;
  shorter.source = OwnedSource(spec, 8, 5);
  EXPECT_EQ(PutOne(shorter), Code::kInvalidArgument);
  EXPECT_EQ(harness.metrics().puts_rejected.Get(), 3u);
  EXPECT_EQ(harness.metrics().puts_present.Get(), 0u);
}

TEST_F(PutTest, OneKeyTwiceInACallIsStoredOnce) {
  const PutReply reply =
      *harness.Call<PutReply>(PutOf({harness.ChainBlock(spec, 1), harness.ChainBlock(spec, 1)}));
  EXPECT_EQ(reply.blocks[0].code, Code::kOk);
  EXPECT_EQ(reply.blocks[1].code, Code::kInvalidArgument);
}

TEST_F(PutTest, S31_OfferedIsStoredPresentRejectedOrDropped) {
  uint32_t faults = 0;
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    if (!std::holds_alternative<MoveJob>(job.work) || ++faults % 3 != 0) return std::nullopt;
    return Status(Code::kInternal, "injected");
  };
  PutCodes(1, 30);
  PutCodes(20, 30);
  const Metrics& metrics = harness.metrics();
  EXPECT_EQ(metrics.puts_offered.Get(), 60u);
  EXPECT_GT(metrics.puts_dropped.Get(), 0u);
  EXPECT_EQ(metrics.puts_stored.Get() + metrics.puts_present.Get() + metrics.puts_rejected.Get() +
                metrics.puts_dropped.Get(),
            60u);
  uint64_t found = 0;
  for (uint64_t i = 1; i < 50; ++i) found += Hits(i, 1);
  EXPECT_EQ(found, metrics.puts_stored.Get());
}

TEST_F(PutTest, ASecondPutOfABlockThatIsBeingStoredWaitsForTheFirst) {
  std::vector<Code> codes;
  for (int i = 0; i < 2; ++i) {
    Put put = PutOf({harness.ChainBlock(spec, 1)});
    put.reply = [&codes](const Result<PutReply>& reply) { codes.push_back(reply->blocks[0].code); };
    harness.Send(std::move(put));
  }
  harness.Settle();
  EXPECT_THAT(codes, testing::UnorderedElementsAre(Code::kOk, Code::kAlreadyExists));
  EXPECT_EQ(harness.fake().moves(), 1u);
}

TEST_F(PutTest, ADurablePutWithoutAPersistentTierIsRefused) {
  EXPECT_EQ(PutCodes(1, 1, Durability::kDurable), std::vector<Code>{Code::kFailedPrecondition});
}

TEST_F(PutTest, ABlockWithATimeToLiveIsGoneAfterIt) {
  Put put = PutOf({harness.ChainBlock(spec, 1)});
  put.ttl = std::chrono::seconds(1);
  ASSERT_TRUE(harness.Call<PutReply>(std::move(put)).ok());
  EXPECT_EQ(Hits(1, 1), 1u);
  harness.Advance(std::chrono::milliseconds(998));
  EXPECT_EQ(Hits(1, 1), 1u);
  harness.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Hits(1, 1), 0u);
  EXPECT_EQ(TierNumbers()[0].used_bytes, 0u);
}

TEST_F(PutTest, AStepThatComesLateReadsNoBlockPastItsTimeToLive) {
  Put put = PutOf({harness.ChainBlock(spec, 1)});
  put.ttl = std::chrono::seconds(1);
  ASSERT_TRUE(harness.Call<PutReply>(std::move(put)).ok());
  std::vector<Code> answers;
  kvtier::Acquire acquire;
  acquire.session = session;
  acquire.model = model;
  acquire.lease = LeaseId{1};
  acquire.keys = {MakeKey(1)};
  acquire.reply = [&](const Result<AcquireReply>& reply) { answers.push_back(reply->stopped_by); };
  Put again = PutOf({harness.ChainBlock(spec, 1)});
  again.reply = [&](const Result<PutReply>& reply) { answers.push_back(reply->blocks[0].code); };
  harness.clock().Advance(std::chrono::seconds(1));
  harness.Send(std::move(acquire));
  harness.Send(std::move(again));
  harness.Settle();
  EXPECT_EQ(answers, (std::vector<Code>{Code::kNotFound, Code::kOk}));
}

TEST_F(PutTest, ATicketIsDoneWithThePutAndUnknownOnesAreStale) {
  PutCodes(1, 2);
  EXPECT_EQ(WaitLast()->blocks.size(), 2u);
  EXPECT_EQ(harness.Call<PutReply>(WaitTicket{session, TicketId{12345}, {}}).status().code(), Code::kStale);
  Put reused = PutOf({harness.ChainBlock(spec, 9)});
  reused.ticket = TicketId{harness.next_ticket - 2};
  EXPECT_EQ(harness.Call<PutReply>(std::move(reused)).status().code(), Code::kAlreadyExists);
}

TEST_F(PutTest, ALateCommandIsAnsweredAndNotDone) {
  Put put = PutOf({harness.ChainBlock(spec, 1)});
  EXPECT_EQ(harness.Call<PutReply>(std::move(put), Duration{}).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(Hits(1, 1), 0u);
  EXPECT_EQ(harness.metrics().commands_late.Get(), 1u);
}

TEST_F(PutTest, ALongPutIsDoneInSlices) {
  std::vector<PutBlock> blocks;
  for (uint64_t i = 1; i <= 1100; ++i) {
    PutBlock tail = harness.ChainBlock(spec, i);
    tail.tokens = 0;  // refused one by one
    blocks.push_back(std::move(tail));
  }
  bool answered = false;
  Put put = PutOf(std::move(blocks));
  put.reply = [&answered](const Result<PutReply>& reply) { answered = reply->blocks.size() == 1100; };
  harness.Send(std::move(put));
  harness.StepOnly();
  EXPECT_FALSE(answered);
  EXPECT_EQ(harness.metrics().puts_rejected.Get(), kKeysPerStep);
  harness.Settle();
  EXPECT_TRUE(answered);
}

TEST_F(PutTest, AnotherTenantsModelIsNotFound) {
  const SessionId other = harness.Open(2, "uid:2000");
  EXPECT_EQ(harness.PutChain(other, model, spec, 1, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(harness.LookupKeys(other, model, {MakeKey(1)}).status().code(), Code::kNotFound);
}

TEST_F(PutTest, AForeignTenantsKeyIsAMiss) {
  PutCodes(1, 1);
  const SessionId other = harness.Open(2, "uid:2000");
  const ModelId own = harness.Register(other, spec);
  EXPECT_NE(own, model);
  EXPECT_EQ(harness.LookupKeys(other, own, {MakeKey(1)})->run.size(), 0u);
  EXPECT_EQ(harness.AcquireKeys(other, own, 1, {MakeKey(1)})->stopped_by, Code::kNotFound);
}

}  // namespace
}  // namespace kvtier
