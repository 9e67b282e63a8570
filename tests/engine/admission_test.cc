// What a cold tier takes of the blocks that are demoted to it, what it keeps when it reclaims, and the counts
// of both.
#include <set>

#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

constexpr TierId kCold{1};
constexpr uint64_t kSegment = 64 * kKiB;
constexpr uint64_t kRecord = 4 * kKiB;  ///< of a TinyModel block as INT2
constexpr uint64_t kRecordsOfASegment = (kSegment - kColdSegmentHeaderBytes) / kRecord;

TierOptions Cold(uint64_t segments, const AdmissionOptions& admission = {}, double rewrite_share = 0) {
  // The index has its share of the capacity.
  TierOptions tier = ColdTier("cold", segments * kSegment * 16 / 15 + kSegment / 2, kSegment, CodecId::kKv2p);
  tier.admission = admission;
  tier.rewrite_share = rewrite_share;
  return tier;
}

class AdmissionTest : public testing::Test {
 protected:
  void Begin(const TierOptions& cold) {
    ladder_.emplace(EngineHarness::Options{.tiers = {HostTier("hot", 64 * kKiB, CodecId::kRaw16), cold},
                                           .limits = {.lease_share = 1.0}});
  }
  ~AdmissionTest() override {
    if (ladder_) ladder_->harness.engine().CheckInvariants();
  }
  /// Blocks of their own chains, one after the other.
  void Put(uint64_t first, uint64_t count) {
    for (uint64_t number = first; number < first + count; ++number) {
      EXPECT_EQ(ladder_->PutCodes(number, 1), std::vector<Code>{Code::kOk}) << number;
      ladder_->harness.Settle();
    }
  }
  /// Whether it is there and is itself.
  bool Use(uint64_t number) {
    const Result<AcquireReply> reply = ladder_->Acquire(number, number, 1);
    if (!reply.ok() || reply->run.empty()) return false;
    EXPECT_EQ(ladder_->OwnerAt(reply->run[0].place), number);
    EXPECT_TRUE(ladder_->harness.ReleaseLease(ladder_->session, number).ok());
    return true;
  }
  uint64_t There(uint64_t first, uint64_t count) {
    uint64_t there = 0;
    for (uint64_t number = first; number < first + count; ++number) there += ladder_->Hits(number, 1);
    return there;
  }
  const TierMetrics& Numbers() { return ladder_->harness.metrics().tier[kCold.value]; }
  uint64_t Demoted() { return Numbers().written_for_demotions.Get() / kRecord; }

  std::optional<LadderFixture> ladder_;
};

TEST_F(AdmissionTest, WithoutAPolicyEverythingIsAdmitted) {
  Begin(Cold(8));
  Put(1, 300);
  EXPECT_EQ(Numbers().refused_seldom_used.Get() + Numbers().refused_over_budget.Get(), 0u);
  EXPECT_GE(Numbers().admitted.Get(), Demoted());
  EXPECT_GT(Demoted(), 250u);
}

TEST_F(AdmissionTest, AFullTierDoesNotGiveWhatIsUsedForWhatIsSeenOnce) {
  constexpr uint64_t kUsed = 40, kSeenOnce = 600;
  uint64_t kept[2] = {0, 0};
  for (const bool by_frequency : {false, true}) {
    Begin(Cold(8, {.by_frequency = by_frequency}));
    Put(1, kUsed);
    for (uint64_t number = 1; number <= kUsed; ++number) EXPECT_TRUE(Use(number));
    for (uint64_t number = 1; number <= kUsed; ++number) EXPECT_TRUE(Use(number));
    Put(1000, kSeenOnce);
    kept[by_frequency] = There(1, kUsed);
    ladder_->harness.engine().CheckInvariants();
  }
  EXPECT_EQ(kept[false], 0u);
  EXPECT_GT(kept[true], kUsed / 2);
  EXPECT_GT(Numbers().refused_seldom_used.Get(), kSeenOnce / 2);
  // And less is written.
  EXPECT_LT(Numbers().written_for_demotions.Get(), kSeenOnce * kRecord);
}

TEST_F(AdmissionTest, TheNewestIsAdmittedOnceItIsUsedMore) {
  Begin(Cold(8, {.by_frequency = true}));
  Put(1, 600);
  ASSERT_GT(Numbers().refused_seldom_used.Get(), 0u);
  constexpr uint64_t kLater = 2000;
  ladder_->PutCodes(kLater, 1);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Use(kLater));
  Put(3000, 30);
  EXPECT_EQ(ladder_->Hits(kLater, 1), 1u);
}

TEST_F(AdmissionTest, WhatTheBudgetDoesNotAllowIsEvictedAndCounted) {
  constexpr uint64_t kBlocksAnHour = 20;
  Begin(Cold(64, {.write_bytes_per_day = 24 * kBlocksAnHour * kRecord}));
  Put(1, 30);
  EXPECT_EQ(Demoted(), 0u) << "a start gives no hour's share";
  ladder_->harness.Advance(std::chrono::hours(1));
  Put(101, 100);
  EXPECT_EQ(Demoted(), kBlocksAnHour);
  EXPECT_EQ(Numbers().written_for_demotions.Get(), kBlocksAnHour * kRecord);
  EXPECT_GT(Numbers().refused_over_budget.Get(), 50u);
  ladder_->harness.Advance(std::chrono::minutes(30));
  Put(301, 40);
  EXPECT_EQ(Demoted(), kBlocksAnHour * 3 / 2);
}

TEST_F(AdmissionTest, DurablePutsAreWrittenInAnyCaseAndCount) {
  Begin(Cold(64, {.write_bytes_per_day = 24 * 10 * kRecord}));
  for (uint64_t number = 1; number <= 20; ++number) {
    ladder_->PutCodes(number, 1, Durability::kDurable);
    const Result<PutReply> synced = ladder_->WaitLast();
    ASSERT_TRUE(synced.ok());
    EXPECT_EQ(synced->blocks[0].code, Code::kOk);
  }
  EXPECT_GE(Numbers().written_for_puts.Get(), 20u * kRecord);
  Put(100, 30);
  EXPECT_EQ(Demoted(), 0u);
  EXPECT_GT(Numbers().refused_over_budget.Get(), 0u);
}

TEST_F(AdmissionTest, AnOperatorsDemotionIsNotRefused) {
  Begin(Cold(64, {.write_bytes_per_day = 1}));
  Put(1, 4);
  const uint64_t before = Numbers().written_for_demotions.Get();
  EXPECT_EQ(*ladder_->harness.Call<uint64_t>(AdminDemote{.from = TierId{0}, .count = 2, .reply = {}}), 2u);
  EXPECT_EQ(Numbers().written_for_demotions.Get(), before + 2 * kRecord);
}

TEST_F(AdmissionTest, AReclaimKeepsWhatIsUsed) {
  constexpr uint64_t kUsed = 30;
  uint64_t kept[2] = {0, 0};
  for (const bool rewrites : {false, true}) {
    Begin(Cold(16, {}, rewrites ? 0.5 : 0.0));
    uint64_t next = 1000;
    for (uint64_t number = 1; number <= kUsed; ++number, next += 2) {
      Put(number, 1);
      Put(next, 2);
    }
    for (int round = 0; round < 8; ++round) {
      Put(next, 60);
      next += 60;
      for (uint64_t number = 1; number <= kUsed; ++number) Use(number);
    }
    Put(next, 40);
    kept[rewrites] = There(1, kUsed);
    EXPECT_EQ(Numbers().written_for_rewrites.Get() > 0, rewrites);
    ladder_->harness.engine().CheckInvariants();
    ladder_->harness.Restart();
    ladder_->Begin();
    EXPECT_GE(There(1, kUsed) + 8, kept[rewrites]) << "but for those in host memory";
  }
  EXPECT_LT(kept[false], kUsed / 2);
  EXPECT_GT(kept[true], kUsed * 3 / 4);
}

TEST_F(AdmissionTest, ABlockRemovedWhileItIsWrittenAgainStaysRemoved) {
  Begin(Cold(8, {}, 0.5));
  constexpr uint64_t kUsed = 30;
  Put(1, kUsed);
  for (uint64_t number = 1; number <= kUsed; ++number) EXPECT_TRUE(Use(number));
  std::vector<Key> rewritten;
  bool removed = false;
  ladder_->harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    const bool rewrite = move != nullptr && !move->order.staged && move->order.source.tier == kCold &&
                         move->order.target.tier == kCold;
    if (!rewrite || removed) return std::nullopt;
    removed = true;
    rewritten.push_back(move->order.identity.key);
    ladder_->harness.Send(
        Remove{.session = ladder_->session, .model = ladder_->model, .keys = rewritten, .reply = {}},
        std::chrono::seconds(10));
    return std::nullopt;
  };
  Put(1000, 200);
  ASSERT_TRUE(removed);
  ladder_->harness.engine().CheckInvariants();
  EXPECT_EQ(ladder_->harness.LookupKeys(ladder_->session, ladder_->model, rewritten)->run.size(), 0u);
  ladder_->harness.Restart();
  ladder_->Begin();
  EXPECT_EQ(ladder_->harness.LookupKeys(ladder_->session, ladder_->model, rewritten)->run.size(), 0u);
}

TEST_F(AdmissionTest, WhenARewriteFailsTheBlockGoesWithItsSegmentAndSpaceComesBack) {
  Begin(Cold(8, {}, 0.5));
  uint32_t failed = 0;
  ladder_->harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    const bool rewrite = move != nullptr && !move->order.staged && move->order.source.tier == kCold &&
                         move->order.target.tier == kCold;
    if (!rewrite) return std::nullopt;
    ++failed;
    return Status(Code::kInternal, "injected");
  };
  Put(1, 30);
  for (uint64_t number = 1; number <= 30; ++number) EXPECT_TRUE(Use(number));
  Put(1000, 200);
  EXPECT_GT(failed, 0u);
  EXPECT_EQ(There(1150, 50), 50u);
  EXPECT_EQ(Numbers().written_for_rewrites.Get(), 0u);
}

TEST_F(AdmissionTest, S54_WhenTheDeviceHangsInARewriteTheOthersGoOnAndTheBlockStays) {
  constexpr uint64_t kUsed = 30;
  Begin(Cold(8, {}, 0.5));
  EngineHarness& harness = ladder_->harness;
  Put(1, kUsed);
  for (uint64_t number = 1; number <= kUsed; ++number) EXPECT_TRUE(Use(number));
  std::set<Key> rewritten;
  harness.hang_job = [&](const Job& job) {
    const auto* move = std::get_if<MoveJob>(&job.work);
    const bool rewrite = move != nullptr && !move->order.staged && move->order.source.tier == kCold &&
                         move->order.target.tier == kCold;
    if (rewrite) rewritten.insert(move->order.identity.key);
    return rewrite;
  };
  for (uint64_t number = 1000; rewritten.empty(); ++number) {
    ASSERT_LT(number, 2000u);
    Put(number, 1);
  }
  harness.Advance(std::chrono::seconds(3));
  EXPECT_EQ(harness.metrics().tier[kCold.value].circuit_open.Get(), 1);
  // Puts and reads of the host tier go on.
  for (uint64_t number = 2100; number < 2200; ++number) {
    Put(number, 1);
    EXPECT_EQ(There(number, 1), 1u);
  }
  EXPECT_LE(harness.hanging(), 32u);
  harness.engine().CheckInvariants();
  harness.ReleaseHanging();
  harness.Advance(std::chrono::seconds(2));
  harness.engine().CheckInvariants();
  EXPECT_EQ(harness.metrics().tier[kCold.value].circuit_open.Get(), 0);
  size_t kept = 0;
  for (uint64_t number = 1; number <= kUsed; ++number) {
    if (!rewritten.contains(MakeKey(number)) || There(number, 1) == 0) continue;
    EXPECT_TRUE(Use(number));  // its own bytes
    ++kept;
  }
  EXPECT_EQ(kept, rewritten.size());
  // Reclaiming goes on, too.
  Put(3000, 200);
  EXPECT_EQ(There(3190, 10), 10u);
}

TEST_F(AdmissionTest, CleanSegmentsAreKeptAheadOfTheWriter) {
  constexpr uint64_t kSegments = 48, kClean = 3;
  Begin(Cold(kSegments));
  Put(1, kSegments * kRecordsOfASegment + 50);
  ASSERT_GT(Numbers().evicted_capacity.Get(), 0u);
  for (uint64_t number = 2000; number < 2000 + 2 * kRecordsOfASegment; ++number) {
    Put(number, 1);
    EXPECT_LE(ladder_->TierNumbers()[kCold.value].used_bytes,
              (kSegments - kClean) * kRecordsOfASegment * kRecord);
  }
}

}  // namespace
}  // namespace kvtier
