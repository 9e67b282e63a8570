// Devices of cold tiers that fail, fill up or do not answer: everything else goes on.
#include <set>

#include "daemon/engine/circuit.h"
#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

constexpr TierId kCold{2};

EngineHarness::Options ThreeTiers() {
  return {.tiers = {HostTier("hot", 64 * kKiB, CodecId::kRaw16), HostTier("warm", 64 * kKiB, CodecId::kKv4p),
                    ColdTier("cold", 4 * kMiB, 64 * kKiB, CodecId::kKv2p)},
          .limits = {.lease_share = 1.0}};
}

bool TouchesCold(const Job& job) {
  const auto* move = std::get_if<MoveJob>(&job.work);
  return move != nullptr &&
         (move->order.target.tier == kCold || (!move->order.staged && move->order.source.tier == kCold));
}
bool ReadsCold(const Job& job) {
  const auto* move = std::get_if<MoveJob>(&job.work);
  return move != nullptr && !move->order.staged && move->order.source.tier == kCold;
}

class DeviceTest : public testing::Test, protected LadderFixture {
 protected:
  DeviceTest() : LadderFixture(ThreeTiers()) {}
  ~DeviceTest() override { harness.engine().CheckInvariants(); }

  /// Enough blocks that the first ones are on the cold tier alone.
  void FillToCold() {
    for (uint64_t i = 1; i <= kFilled; ++i) ASSERT_EQ(PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
    ASSERT_EQ(Hits(1, 1), 1u);
  }
  /// Blocks of which every put is acknowledged, found and read back.
  void ExpectHostTiersServe(uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) {
      ASSERT_EQ(PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
      const Result<AcquireReply> reply = Acquire(1000 + i, i, 1);
      ASSERT_TRUE(reply.ok() && reply->run.size() == 1) << i;
      EXPECT_EQ(OwnerAt(reply->run[0].place), i);
      harness.ReleaseLease(session, 1000 + i).value();
    }
  }
  std::vector<std::pair<Code, size_t>> AcquireOne(uint64_t number) {
    const Result<AcquireReply> reply = Acquire(next_lease_++, number, 1);
    if (!reply.ok()) return {{reply.status().code(), 0}};
    return {{reply->stopped_by, reply->run.size()}};
  }

  static constexpr uint64_t kFilled = 100;
  uint64_t next_lease_ = 5000;
};

using Answer = std::vector<std::pair<Code, size_t>>;

TEST_F(DeviceTest, S54_WhileTheDeviceHangsTheOtherTiersServe) {
  FillToCold();
  harness.hang_job = TouchesCold;
  harness.hang_cold = [](const ColdJob&) { return true; };
  // Before it is known to hang, puts wait for room below at most until their deadline.
  for (uint64_t i = 200; i < 230; ++i) PutCodes(i, 1);
  EXPECT_GT(harness.hanging(), 0u);
  harness.Advance(2 * kCircuitOpenFor + std::chrono::milliseconds(100));
  EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 1);
  const size_t hanging = harness.hanging();
  ExpectHostTiersServe(300, 100);
  EXPECT_LE(harness.hanging(), hanging + 2) << "nothing more goes to a device that does not answer";
  harness.ReleaseHanging();
}

TEST_F(DeviceTest, S54_AReadOfAHungDeviceIsAMissAtItsDeadlineAndLaterAtOnce) {
  FillToCold();
  harness.hang_job = ReadsCold;
  const TimePoint start = harness.clock().Now();
  EXPECT_EQ(AcquireOne(1), (Answer{{Code::kDeadlineExceeded, 0}}));
  EXPECT_GE(harness.clock().Now() - start, std::chrono::milliseconds(100));
  harness.Advance(std::chrono::seconds(2));
  EXPECT_EQ(harness.metrics().tier[2].read_circuit_open.Get(), 1);
  const TimePoint later = harness.clock().Now();
  const size_t hanging = harness.hanging();
  for (uint64_t i = 2; i < 20; ++i) EXPECT_EQ(AcquireOne(i), (Answer{{Code::kUnavailable, 0}})) << i;
  EXPECT_EQ(harness.clock().Now(), later);
  EXPECT_EQ(harness.hanging(), hanging);
  // What hung is the probe: when it ends well, the tier is read again.
  harness.ReleaseHanging();
  harness.Settle();
  EXPECT_EQ(harness.metrics().tier[2].read_circuit_open.Get(), 0);
  EXPECT_EQ(AcquireOne(3), (Answer{{Code::kOk, 1}}));
}

TEST_F(DeviceTest, S54_OneHungDemotionDoesNotHoldUpPuts) {
  FillToCold();
  // One job of many: the device goes on answering the others.
  bool hung = false;
  harness.hang_job = [&](const Job& job) { return TouchesCold(job) && !std::exchange(hung, true); };
  for (uint64_t i = 200; i < 210; ++i) PutCodes(i, 1);
  EXPECT_EQ(harness.hanging(), 1u);
  harness.Advance(std::chrono::seconds(3));
  ExpectHostTiersServe(300, 60);
  EXPECT_EQ(harness.hanging(), 1u);
  harness.ReleaseHanging();
}

TEST_F(DeviceTest, S54_AHungCommitterShedsWritesAndReadsGoOn) {
  FillToCold();
  harness.hang_cold = [](const ColdJob&) { return true; };
  for (uint64_t i = 200; i < 220; ++i) PutCodes(i, 1);
  harness.Advance(std::chrono::seconds(3));
  EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 1);
  EXPECT_EQ(harness.metrics().tier[2].read_circuit_open.Get(), 0);
  EXPECT_EQ(AcquireOne(1), (Answer{{Code::kOk, 1}}));
  ExpectHostTiersServe(300, 60);
  harness.ReleaseHanging();
  harness.Advance(kCircuitOpenFor);
  ExpectHostTiersServe(400, 60);
  EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 0);
}

TEST_F(DeviceTest, AHungDeviceKeepsABoundedNumberOfBlocks) {
  FillToCold();
  harness.hang_job = ReadsCold;
  Prefetch prefetch;
  prefetch.session = session;
  prefetch.model = model;
  prefetch.ticket = TicketId{harness.next_ticket++};
  prefetch.target = TierId{1};
  prefetch.keys = harness.ChainKeysOf(1, 60);
  harness.Call<uint32_t>(std::move(prefetch)).value();
  EXPECT_LE(harness.hanging(), 32u);
  harness.Advance(std::chrono::seconds(3));
  ExpectHostTiersServe(300, 40);
  harness.ReleaseHanging();
}

TEST_F(DeviceTest, ReadsThatFailInARowStopUntilAProbeSucceeds) {
  FillToCold();
  uint32_t tries = 0;
  bool broken = true;
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    if (!ReadsCold(job)) return std::nullopt;
    ++tries;
    return broken ? std::optional(Status(Code::kUnavailable, "EIO")) : std::nullopt;
  };
  for (uint64_t i = 1; i < 30; ++i) EXPECT_EQ(AcquireOne(i), (Answer{{Code::kUnavailable, 0}})) << i;
  EXPECT_EQ(tries, kReadFailuresToOpen);
  EXPECT_EQ(Hits(1, 1), 1u) << "what cannot be read now may be read later";
  harness.Advance(kCircuitOpenFor);
  for (uint64_t i = 1; i < 30; ++i) AcquireOne(i);
  EXPECT_EQ(tries, kReadFailuresToOpen + 1);
  broken = false;
  harness.Advance(kCircuitOpenFor);
  EXPECT_EQ(AcquireOne(1), (Answer{{Code::kOk, 1}}));
  EXPECT_EQ(AcquireOne(2), (Answer{{Code::kOk, 1}}));
}

TEST_F(DeviceTest, AFileSystemThatTurnedReadOnlyIsADeviceFailure) {
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    if (!TouchesCold(job)) return std::nullopt;
    return Status(Code::kPermissionDenied, "EROFS");
  };
  PutCodes(1, 1, Durability::kDurable);
  const Result<PutReply> synced = WaitLast();
  ASSERT_TRUE(synced.ok());
  EXPECT_EQ(synced->blocks[0].code, Code::kUnavailable);
  EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 1);
}

TEST_F(DeviceTest, S45_ABlockIsNotDurableWithoutTheRecordOfItsModel) {
  bool broken = true;
  harness.fake().cold_fault = [&](const ColdJob& job) -> std::optional<Status> {
    if (!broken || !std::holds_alternative<PutModelJob>(job.work)) return std::nullopt;
    return Status(Code::kResourceExhausted, "ENOSPC");
  };
  spec.model_id = "another";
  model = harness.Register(session, spec);
  harness.Advance(kCircuitOpenFor);
  PutCodes(1, 1, Durability::kDurable);
  EXPECT_NE(WaitLast()->blocks[0].code, Code::kOk);
  broken = false;
  harness.Advance(kCircuitOpenFor);
  PutCodes(2, 1, Durability::kDurable);
  EXPECT_EQ(WaitLast()->blocks[0].code, Code::kOk);
  harness.Restart();
  Begin();
  EXPECT_EQ(Hits(2, 1), 1u);
}

TEST_F(DeviceTest, AModelMoreThanTheTierKeepsCostsItsOwnBlocksAlone) {
  PutCodes(1, 1, Durability::kDurable);
  ASSERT_EQ(WaitLast()->blocks[0].code, Code::kOk);
  harness.fake().cold_fault = [&](const ColdJob& job) -> std::optional<Status> {
    if (!std::holds_alternative<PutModelJob>(job.work)) return std::nullopt;
    return Status(Code::kOutOfRange, "the folder holds as many models as it may");
  };
  const ModelId first = model;
  ModelSpec more = spec;
  for (int i = 0; i < 3; ++i) {
    more.model_id = "more" + std::to_string(i);
    model = harness.Register(session, more);
    PutCodes(100, 1, Durability::kDurable);
    EXPECT_NE(WaitLast()->blocks[0].code, Code::kOk);
    EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 0);
    model = first;
    PutCodes(10 + static_cast<uint64_t>(i), 1, Durability::kDurable);
    EXPECT_EQ(WaitLast()->blocks[0].code, Code::kOk);
  }
}

TEST_F(DeviceTest, S42_AFullDiskMakesTheTierSmallerUntilSpaceReturns) {
  std::set<uint32_t> files;
  size_t room = 3;
  uint32_t refused = 0;
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (move == nullptr || move->order.target.tier != kCold) return std::nullopt;
    if (files.contains(move->order.target.container)) return std::nullopt;
    if (files.size() >= room) {
      ++refused;
      return Status(Code::kResourceExhausted, "ENOSPC");
    }
    files.insert(move->order.target.container);
    return std::nullopt;
  };
  for (uint64_t i = 1; i <= 200; ++i) ASSERT_EQ(PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
  EXPECT_EQ(files.size(), 3u);
  EXPECT_GT(refused, 0u);
  EXPECT_LT(refused, 40u) << "segments without a file are left alone for a while";
  EXPECT_EQ(harness.metrics().tier[2].circuit_open.Get(), 0) << "the tier is smaller, not broken";
  EXPECT_GT(harness.metrics().tier[2].evicted_capacity.Get(), 0u);
  EXPECT_GT(TierNumbers()[2].used_bytes, 0u);
  PutCodes(300, 2, Durability::kDurable);
  const Result<PutReply> synced = WaitLast();
  for (const PutOutcome& outcome : synced->blocks) EXPECT_EQ(outcome.code, Code::kOk);
  room = 100;
  harness.Advance(std::chrono::seconds(2));
  for (uint64_t i = 400; i <= 500; ++i) ASSERT_EQ(PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
  EXPECT_GT(files.size(), 5u);
}

TEST_F(DeviceTest, S42_ADiskThatIsFullFromTheStartShedsAndRecovers) {
  bool full = true;
  harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (!full || move == nullptr || move->order.target.tier != kCold) return std::nullopt;
    return Status(Code::kResourceExhausted, "ENOSPC");
  };
  ExpectHostTiersServe(1, 100);
  EXPECT_EQ(TierNumbers()[2].used_bytes, 0u);
  full = false;
  harness.Advance(std::chrono::seconds(3));
  ExpectHostTiersServe(200, 60);
  EXPECT_GT(TierNumbers()[2].used_bytes, 0u);
}

}  // namespace
}  // namespace kvtier
