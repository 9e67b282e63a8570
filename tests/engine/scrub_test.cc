#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

constexpr TierId kCold{2};
constexpr uint64_t kRate = 4096;  ///< bytes a second

EngineHarness::Options ScrubbedTiers(uint64_t rate, uint64_t cold_bytes = kMiB) {
  EngineHarness::Options options{
      .tiers = {HostTier("hot", 64 * kKiB, CodecId::kRaw16), HostTier("warm", 64 * kKiB, CodecId::kKv4p),
                ColdTier("cold", cold_bytes, 64 * kKiB, CodecId::kKv2p)},
      .limits = {.lease_share = 1.0}};
  options.tiers[2].scrub_bytes_per_second = rate;
  return options;
}

class ScrubTest : public testing::Test, protected LadderFixture {
 protected:
  explicit ScrubTest(uint64_t rate = kRate) : LadderFixture(ScrubbedTiers(rate)) {}
  ~ScrubTest() override { harness.engine().CheckInvariants(); }
  const TierMetrics& Cold() { return harness.metrics().tier[kCold.value]; }
  /// Durable blocks `first`.., cold only.
  void Store(uint64_t first, uint64_t count) {
    PutCodes(first, count, Durability::kDurable);
    ASSERT_TRUE(WaitLast().ok());
    harness.Restart();
    Begin();
  }
  void Fail(Code code, uint64_t number) {
    harness.fake().job_fault = [code, number](const Job& job) -> std::optional<Status> {
      const auto* verify = std::get_if<VerifyJob>(&job.work);
      if (verify == nullptr || verify->identity.key != MakeKey(number)) return std::nullopt;
      return Status(code, "injected");
    };
  }
};
class NoScrubTest : public ScrubTest {
 protected:
  NoScrubTest() : ScrubTest(0) {}
};

TEST_F(ScrubTest, S43_ACorruptBlockIsFoundBeforeAReaderComesToIt) {
  Store(1, 8);
  Fail(Code::kDataLoss, 5);
  for (int s = 0; s < 100; ++s) harness.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Cold().scrub_corrupt.Get(), 1u);
  EXPECT_EQ(Cold().checksum_failures.Get(), 1u);
  EXPECT_EQ(harness.metrics().quarantined_blocks.Get(), 1u);
  EXPECT_EQ(Hits(5, 1), 0u);
  EXPECT_EQ(Hits(1, 4), 4u);
  EXPECT_EQ(Hits(6, 3), 3u);
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(5, 1), 0u);
}

TEST_F(ScrubTest, ReadsNoFasterThanItsRateAndCountsPasses) {
  Store(1, 8);
  constexpr int kSeconds = 10;
  const uint64_t before = Cold().scrubbed_bytes.Get();
  for (int ms = 0; ms < kSeconds * 1000; ms += 50) harness.Advance(std::chrono::milliseconds(50));
  const uint64_t bytes = Cold().scrubbed_bytes.Get() - before;
  // One more than the time allows: the first of the period.
  EXPECT_LE(bytes, kSeconds * kRate + 2 * kRate);
  EXPECT_GT(bytes, 0u);
  for (int s = 0; s < 200; ++s) harness.Advance(std::chrono::seconds(1));
  EXPECT_GE(Cold().scrub_passes.Get(), 2u);
  EXPECT_EQ(Cold().scrubbed_blocks.Get() % 8, 0u);
  EXPECT_EQ(Cold().scrub_corrupt.Get(), 0u);
}

TEST_F(ScrubTest, AReadErrorIsNoDamage) {
  Store(1, 3);
  Fail(Code::kUnavailable, 2);
  for (int s = 0; s < 100; ++s) harness.Advance(std::chrono::seconds(1));
  EXPECT_GT(Cold().read_errors.Get(), 0u);
  EXPECT_EQ(Cold().scrub_corrupt.Get(), 0u);
  EXPECT_EQ(Hits(1, 3), 3u);
}

TEST_F(ScrubTest, WaitsWhileTheTierHasOtherThingsToDo) {
  Store(1, 4);
  const uint64_t before = Cold().scrubbed_blocks.Get();
  for (uint64_t i = 100; i < 140; ++i) {
    Put put;
    put.session = session;
    put.model = model;
    put.ticket = TicketId{harness.next_ticket++};
    put.durability = Durability::kDurable;
    put.blocks.push_back(harness.ChainBlock(spec, i));
    harness.Send(std::move(put), std::chrono::seconds(100));
  }
  harness.clock().Advance(std::chrono::seconds(1));
  harness.StepOnly();
  harness.HoldJobs();
  for (size_t i = harness.held(); i > 0; --i)
    harness.RunHeld(0);  // staged: the moves to the cold tier are next
  harness.StepOnly();
  harness.HoldJobs();
  ASSERT_GT(harness.held(), 4u);
  harness.clock().Advance(std::chrono::seconds(5));
  harness.StepOnly();
  EXPECT_EQ(Cold().scrubbed_blocks.Get(), before);
  while (harness.held() > 0) harness.RunHeld(0);
  for (int s = 0; s < 3; ++s) harness.Advance(std::chrono::seconds(1));
  EXPECT_GT(Cold().scrubbed_blocks.Get(), before);
}

TEST_F(NoScrubTest, ARateOfZeroReadsNothing) {
  Store(1, 4);
  for (int s = 0; s < 100; ++s) harness.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Cold().scrubbed_blocks.Get(), 0u);
}

}  // namespace
}  // namespace kvtier
