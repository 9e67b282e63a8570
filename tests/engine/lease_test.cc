#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

/// Room for a few raw blocks only.
EngineHarness::Options Tight() {
  return {.tiers = {HostTier("hot", 128 * kKiB, CodecId::kRaw16)}};
}

class LeaseTest : public testing::Test, protected LadderFixture {
 protected:
  LeaseTest() : LadderFixture(Tight()) {}
  ~LeaseTest() override { harness.engine().CheckInvariants(); }
};

TEST_F(LeaseTest, S12_AReusedSlotHasAnotherEpoch) {
  PutCodes(1, 1);
  const Place before = Acquire(1, 1, 1)->run[0].place;
  ASSERT_TRUE(harness.ReleaseLease(session, 1).ok());
  harness.Call<uint64_t>(Remove{session, model, {MakeKey(1)}, {}}).value();
  for (uint64_t i = 2; i < 100; ++i) PutCodes(i, 1);
  bool reused = false;
  for (uint64_t i = 2; i < 100; ++i) {
    const Result<AcquireReply> reply = Acquire(i, i, 1);
    for (const AcquiredBlock& block : reply->run) {
      if (block.place.container != before.container || block.place.slot != before.slot) continue;
      reused = true;
      EXPECT_GT(block.place.epoch, before.epoch);
    }
    harness.ReleaseLease(session, i).status().ok();
  }
  EXPECT_TRUE(reused);
  EXPECT_EQ(harness.fake().At(before), std::nullopt);
}

TEST_F(LeaseTest, S18_AnExpiredLeaseIsStaleForEveryCall) {
  PutCodes(1, 1);
  ASSERT_EQ(Acquire(1, 1, 1)->run.size(), 1u);
  harness.Advance(std::chrono::seconds(11));
  EXPECT_EQ(harness.Call<Done>(Renew{session, LeaseId{1}, {}, {}}).status().code(), Code::kStale);
  EXPECT_EQ(harness.ReleaseLease(session, 1).status().code(), Code::kStale);
  EXPECT_EQ(harness.metrics().leases_expired.Get(), 1u);
}

TEST_F(LeaseTest, ARenewedLeaseLivesOn) {
  PutCodes(1, 1);
  Acquire(1, 1, 1).value();
  for (int i = 0; i < 5; ++i) {
    harness.Advance(std::chrono::seconds(8));
    ASSERT_TRUE(harness.Call<Done>(Renew{session, LeaseId{1}, std::chrono::seconds(10), {}}).ok());
  }
  EXPECT_TRUE(harness.ReleaseLease(session, 1).ok());
}

TEST_F(LeaseTest, S25_ALookupPinsNothing) {
  PutCodes(1, 4);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Hits(1, 4), 4u);
  const auto blocks = harness.Call<std::vector<BlockStats>>(ListBlocks{model, {}, 10, {}});
  for (const BlockStats& block : *blocks) EXPECT_EQ(block.pins, 0u);
  EXPECT_EQ(PutCodes(100, 30), std::vector<Code>(30, Code::kOk));  // eviction makes progress
}

TEST_F(LeaseTest, S25_AnAcquireThatIsNeverReleasedIsFreedAtItsTimeToLive) {
  PutCodes(1, 2);
  ASSERT_EQ(Acquire(1, 1, 2)->run.size(), 2u);
  EXPECT_EQ(harness.metrics().leases_live.Get(), 1);
  harness.Advance(std::chrono::seconds(11));
  EXPECT_EQ(harness.metrics().leases_live.Get(), 0);
  EXPECT_EQ(harness.metrics().leases_expired.Get(), 1u);
  const auto blocks = harness.Call<std::vector<BlockStats>>(ListBlocks{model, {}, 10, {}});
  for (const BlockStats& block : *blocks) EXPECT_EQ(block.pins, 0u);
}

TEST_F(LeaseTest, S26_ASecondReleaseIsAnErrorAndChangesNothing) {
  PutCodes(1, 1);
  Acquire(1, 1, 1).value();
  EXPECT_TRUE(harness.ReleaseLease(session, 1).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(harness.ReleaseLease(session, 1).status().code(), Code::kStale);
  EXPECT_EQ(harness.metrics().leases_released.Get(), 1u);
  EXPECT_EQ(harness.metrics().leases_live.Get(), 0);
}

TEST_F(LeaseTest, S26_AReleaseAfterARestartIsStale) {
  PutCodes(1, 1);
  Acquire(1, 1, 1).value();
  harness.Restart();
  Begin();
  EXPECT_EQ(harness.ReleaseLease(session, 1).status().code(), Code::kStale);
}

TEST_F(LeaseTest, S27_BytesUnderALeaseStayThroughEvictionAndRemoval) {
  PutCodes(1, 2);
  const AcquireReply held = *Acquire(1, 1, 2);
  ASSERT_EQ(held.run.size(), 2u);
  for (uint64_t i = 100; i < 160; ++i) PutCodes(i, 1);  // a storm of evictions
  harness.Call<uint64_t>(Remove{session, model, harness.ChainKeysOf(1, 2), {}}).value();
  EXPECT_EQ(Hits(1, 1), 0u);  // a miss at once
  for (uint64_t i = 200; i < 230; ++i) PutCodes(i, 1);
  for (uint64_t i = 0; i < 2; ++i) EXPECT_EQ(OwnerAt(held.run[i].place), i + 1);
  const uint64_t used = TierNumbers()[0].used_bytes;
  EXPECT_TRUE(harness.ReleaseLease(session, 1).ok());
  EXPECT_LT(TierNumbers()[0].used_bytes, used);
}

TEST_F(LeaseTest, S30_ABlockFromALookupMayBeGoneAtAcquireAndThenIsNamedAMiss) {
  PutCodes(1, 3);
  EXPECT_EQ(Hits(1, 3), 3u);
  harness.Call<uint64_t>(Remove{session, model, {MakeKey(2)}, {}}).value();
  const AcquireReply reply = *Acquire(1, 1, 3);
  EXPECT_EQ(reply.run.size(), 1u);
  EXPECT_EQ(reply.stopped_by, Code::kNotFound);
}

TEST_F(LeaseTest, S37_ADeadSessionsLeasesAreFreeAtOnce) {
  PutCodes(1, 2);
  const SessionId other = harness.Open(2);
  const ModelId same = harness.Register(other, spec);
  ASSERT_EQ(harness.AcquireKeys(other, same, 1, harness.ChainKeysOf(1, 2))->run.size(), 2u);
  harness.Forget(other);
  ASSERT_TRUE(harness.Call<Done>(CloseSession{other, {}}).ok());
  EXPECT_EQ(harness.metrics().leases_live.Get(), 0);
  EXPECT_EQ(harness.metrics().leases_orphaned.Get(), 1u);
  const auto blocks = harness.Call<std::vector<BlockStats>>(ListBlocks{model, {}, 10, {}});
  for (const BlockStats& block : *blocks) EXPECT_EQ(block.pins, 0u);
}

TEST_F(LeaseTest, ALeaseIdInUseIsRefused) {
  PutCodes(1, 1);
  Acquire(1, 1, 1).value();
  EXPECT_EQ(Acquire(1, 1, 1).status().code(), Code::kAlreadyExists);
}

TEST_F(LeaseTest, ASessionHoldsNoMoreThanItsShareOfATier) {
  PutCodes(1, 8);
  const AcquireReply reply = *Acquire(1, 1, 8);
  EXPECT_EQ(reply.stopped_by, Code::kResourceExhausted);
  EXPECT_EQ(reply.run.size(), 4u);  // a quarter of 128 KiB in slots of 8 KiB
  EXPECT_EQ(PutCodes(50, 20), std::vector<Code>(20, Code::kOk));
}

}  // namespace
}  // namespace kvtier
