#include "tiers/transfer_worker.h"

#include <algorithm>
#include <cctype>
#include <latch>
#include <set>
#include <string>

#include "tests/support/faulty_medium.h"
#include "tests/tiers/transfer_fixture.h"

namespace kvtier {
namespace {

TEST_F(TransferWorkersTest, ManyMovesOnManyWorkersAllArriveWhole) {
  StartWorkers(4);
  CreateArenas();
  for (uint32_t n = 0; n < kSlots; ++n) Push(MoveJob{PutOrder(n)});
  for (const auto& [id, completion] : Collect(kSlots)) {
    ASSERT_TRUE(completion.status.ok()) << completion.status.ToString();
    EXPECT_EQ(completion.outcome.codec, CodecId::kRaw16);
  }
  for (uint32_t n = 0; n < kSlots; ++n) Push(MoveJob{CopyOrder(n)});
  Collect(kSlots);
  for (uint32_t n = 0; n < kSlots; ++n) {
    Push(VerifyJob{.identity = MakeIdentity(n), .place = SlotOf(kWarm, n), .medium = &arenas_});
  }
  for (const auto& [id, completion] : Collect(kSlots)) EXPECT_TRUE(completion.status.ok());
  workers_->Stop();  // the last call comes after the last completion
  EXPECT_EQ(wakes_, 2 + 3 * kSlots);
  EXPECT_EQ(metrics_.worker_restarts.Get(), 0u);
}

TEST_F(TransferWorkersTest, VerifyFindsAnotherBlockAndReportsIt) {
  StartWorkers(1);
  CreateArenas();
  Push(MoveJob{PutOrder(3)});
  Collect(1);
  Push(VerifyJob{.identity = MakeIdentity(4), .place = SlotOf(kHot, 3), .medium = &arenas_});
  EXPECT_EQ(Collect(1).begin()->second.status.code(), Code::kDataLoss);
}

TEST_F(TransferWorkersTest, BlocksWithALayerThatStaysRawAreCounted) {
  StartWorkers(1);
  CreateArenas();
  for (const uint32_t n : {0, 1}) {
    MoveOrder order = PutOrder(n);
    order.codec = FindCodec(CodecId::kKv4p);
    if (n == 1) raws_[n][1] = std::byte{0x7C};  // the first element of layer 0 is infinite
    Push(MoveJob{std::move(order)});
    const Completion done = Collect(1).begin()->second;
    ASSERT_TRUE(done.status.ok()) << done.status.ToString();
    ASSERT_EQ(done.outcome.codec, CodecId::kKv4p);
    EXPECT_EQ(metrics_.codec_raw_layer_blocks.Get(), n);
  }
}

TEST_F(TransferWorkersTest, S49_AnExceptionCostsItsJobOnly) {
  StartWorkers(1);
  CreateArenas();
  FaultyMedium faulty(arenas_);
  faulty.Arm(FaultyMedium::Call::kFinishWrite, FaultyMedium::Fault::kThrow);
  MoveOrder order = PutOrder(0);
  order.target_medium = &faulty;
  const JobId bad = Push(MoveJob{order});
  const JobId good = Push(MoveJob{PutOrder(1)});
  const auto done = Collect(2);
  EXPECT_EQ(done.at(bad).status.code(), Code::kInternal);
  EXPECT_EQ(done.at(bad).outcome.codec, CodecId::kNone);
  EXPECT_TRUE(done.at(good).status.ok());
  EXPECT_EQ(metrics_.worker_restarts.Get(), 1u);
}

TEST_F(TransferWorkersTest, S49_AFullCompletionQueueLosesNothing) {
  StartWorkers(4, 1);
  constexpr size_t kJobs = 200;
  for (size_t i = 0; i < kJobs; ++i) Push(DestroyArenaJob{.id = {static_cast<uint32_t>(i)}});
  Collect(kJobs);
}

TEST_F(TransferWorkersTest, StopFinishesWhatIsQueuedAndReleasesStagedMemory) {
  StartWorkers(2);
  CreateArenas();
  auto keep = std::make_shared<int>(1);
  for (uint32_t n = 0; n < kSlots; ++n) {
    MoveOrder order = PutOrder(n);
    order.staged->keep = keep;
    Push(MoveJob{std::move(order)});
  }
  workers_->Stop();
  EXPECT_EQ(keep.use_count(), 1);
  EXPECT_EQ(Collect(kSlots).size(), kSlots);
  workers_->Stop();
}

TEST_F(TransferWorkersTest, ProgressMovesWithTheWork) {
  const TimePoint before = SteadyClock().Now();
  StartWorkers(2);
  EXPECT_GE(workers_->OldestProgress(), before);
  CreateArenas();
  EXPECT_LE(workers_->OldestProgress(), SteadyClock().Now());
}

TEST_F(TransferWorkersTest, RefusesNoneAndTooMany) {
  BoundedQueue<Completion> completions(1);
  for (uint32_t count : {0u, 100000u}) {
    EXPECT_EQ(TransferWorkers::Make({.count = count}, jobs_, completions, arenas_, metrics_).status().code(),
              Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvtier
