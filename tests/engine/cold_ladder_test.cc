// Two cold tiers, one above the other: CXL memory, then NVMe.
#include "tests/engine/ladder_fixture.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

constexpr TierId kCxl{1}, kNvme{2};
constexpr uint64_t kSegment = 64 * kKiB;

TierOptions CxlTier(uint64_t segments, bool persistent) {
  TierOptions tier = ColdTier("cxl", kCxlMetaBytes + segments * kSegment, kSegment, CodecId::kKv2p);
  tier.kind = MediumKind::kCxl;
  tier.persistent = persistent;
  return tier;
}

EngineHarness::Options TwoColdTiers(bool persistent = true, uint64_t cold_bytes = 4 * kMiB) {
  return {.tiers = {HostTier("hot", 128 * kKiB, CodecId::kRaw16), CxlTier(4, persistent),
                    ColdTier("cold", cold_bytes, kSegment, CodecId::kKv2p)},
          .limits = {.lease_share = 1.0}};
}

class ColdLadderTest : public testing::Test {
 protected:
  /// Every block of 1..count is there, with its own bytes.
  static size_t Sound(LadderFixture& ladder, uint64_t count) {
    size_t sound = 0;
    for (uint64_t number = 1; number <= count; ++number) {
      const Result<AcquireReply> reply = ladder.Acquire(number, number, 1);
      if (!reply.ok() || reply->run.size() != 1) continue;
      sound += ladder.OwnerAt(reply->run[0].place) == number;
      EXPECT_TRUE(ladder.harness.ReleaseLease(ladder.session, number).ok());
    }
    return sound;
  }
  static void PutOneByOne(LadderFixture& ladder, uint64_t count) {
    for (uint64_t number = 1; number <= count; ++number) {
      EXPECT_EQ(ladder.PutCodes(number, 1), std::vector<Code>{Code::kOk}) << number;
    }
  }
};

TEST_F(ColdLadderTest, AFullUpperTierGivesItsBlocksToTheLowerOneAndLosesNone) {
  LadderFixture ladder(TwoColdTiers());
  PutOneByOne(ladder, 150);
  ladder.harness.Settle();
  ladder.harness.engine().CheckInvariants();
  EXPECT_EQ(ladder.harness.metrics().tier[kCxl.value].evicted_capacity.Get(), 0u);
  EXPECT_GT(ladder.harness.metrics().moves[kCxl.value][kNvme.value].blocks.Get(), 0u);
  EXPECT_GT(ladder.TierNumbers()[kCxl.value].used_bytes, 0u);
  EXPECT_EQ(Sound(ladder, 150), 150u);
  ladder.harness.engine().CheckInvariants();
}

TEST_F(ColdLadderTest, WhenTheLowerTierTakesNothingTheUpperOneEvicts) {
  LadderFixture ladder(TwoColdTiers());
  ladder.harness.fake().cold_fault = [](const ColdJob& job) -> std::optional<Status> {
    const auto* commit = std::get_if<CommitJob>(&job.work);
    if (commit == nullptr || commit->tier != kNvme) return std::nullopt;
    return Status(Code::kUnavailable, "injected");
  };
  PutOneByOne(ladder, 150);
  ladder.harness.Settle();
  EXPECT_GT(ladder.harness.metrics().tier[kCxl.value].evicted_capacity.Get(), 0u);
  EXPECT_GT(Sound(ladder, 150), 0u);
  ladder.harness.engine().CheckInvariants();
}

TEST_F(ColdLadderTest, ALastTierThatIsFullEvictsAsItAlwaysDid) {
  LadderFixture ladder(TwoColdTiers(true, 320 * kKiB));
  PutOneByOne(ladder, 300);
  ladder.harness.Settle();
  EXPECT_GT(ladder.harness.metrics().tier[kNvme.value].evicted_capacity.Get(), 0u);
  EXPECT_EQ(ladder.Hits(299, 2), 2u);
  ladder.harness.engine().CheckInvariants();
}

TEST_F(ColdLadderTest, ADurablePutGoesToTheHighestTierThatIsPersistent) {
  for (const bool persistent : {true, false}) {
    LadderFixture ladder(TwoColdTiers(persistent));
    ladder.PutCodes(1, 3, Durability::kDurable);
    ASSERT_TRUE(ladder.WaitLast().ok());
    const std::vector<TierStats> tiers = ladder.TierNumbers();
    const auto blocks = [&](TierId tier) {
      return tiers[tier.value].blocks[static_cast<size_t>(Precision::kInt4)];
    };
    EXPECT_EQ(blocks(kCxl), persistent ? 3u : 0u);
    EXPECT_EQ(blocks(kNvme), persistent ? 0u : 3u);
    ladder.harness.engine().CheckInvariants();
  }
}

TEST_F(ColdLadderTest, ADurablePutIsRefusedWhereNothingIsPersistent) {
  LadderFixture ladder(
      {.tiers = {HostTier("hot", 128 * kKiB, CodecId::kRaw16), CxlTier(4, false)}, .limits = {}});
  EXPECT_EQ(ladder.PutCodes(1, 1, Durability::kDurable), std::vector<Code>{Code::kFailedPrecondition});
}

TEST_F(ColdLadderTest, ABlockThatMovedToTheLowerTierIsStillDurable) {
  LadderFixture ladder(TwoColdTiers());
  ladder.PutCodes(1, 1, Durability::kDurable);
  ASSERT_TRUE(ladder.WaitLast().ok());
  for (uint64_t number = 2; number <= 120; ++number) ladder.PutCodes(number, 1);
  ladder.harness.Settle();
  ladder.harness.Restart();
  ladder.Begin();
  EXPECT_EQ(ladder.Hits(1, 1), 1u);
}

TEST_F(ColdLadderTest, BothTiersAreBackAfterARestart) {
  LadderFixture ladder(TwoColdTiers());
  PutOneByOne(ladder, 120);
  ladder.harness.Settle();
  const std::vector<TierStats> before = ladder.TierNumbers();
  ladder.harness.Restart();
  ladder.Begin();
  ladder.harness.engine().CheckInvariants();
  const std::vector<TierStats> after = ladder.TierNumbers();
  for (const TierId tier : {kCxl, kNvme}) {
    EXPECT_EQ(after[tier.value].blocks, before[tier.value].blocks) << static_cast<int>(tier.value);
  }
  size_t there = 0;
  for (uint64_t number = 1; number <= 120; ++number) there += ladder.Hits(number, 1);
  EXPECT_GE(there, 100u);  // but for those that were in host memory only
}

TEST_F(ColdLadderTest, TheCxlTierMayBeTheOnlyColdOne) {
  LadderFixture ladder({.tiers = {HostTier("hot", 128 * kKiB, CodecId::kRaw16), CxlTier(8, true)},
                        .limits = {.lease_share = 1.0}});
  PutOneByOne(ladder, 300);
  ladder.harness.Settle();
  EXPECT_GT(ladder.harness.metrics().tier[kCxl.value].evicted_capacity.Get(), 0u);
  EXPECT_EQ(ladder.Hits(299, 2), 2u);
  ladder.harness.Restart();
  ladder.Begin();
  EXPECT_GT(ladder.TierNumbers()[kCxl.value].used_bytes, 0u);
  ladder.harness.engine().CheckInvariants();
}

}  // namespace
}  // namespace kvtier
