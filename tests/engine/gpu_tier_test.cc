// A tier in the memory of a GPU: it has arenas, as host memory has, and clients cannot map them.
#include <gtest/gtest.h>

#include "tests/support/engine_harness.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr TierId kGpu{0}, kWarm{1}, kCold{2};

class GpuTierTest : public testing::Test {
 protected:
  GpuTierTest() { Open(256 * kKiB); }
  void Open(uint64_t gpu_bytes) {
    EngineHarness::Options options;
    options.tiers = {TierOnGpu("hot", gpu_bytes, CodecId::kRaw16),
                     HostTier("warm", 1024 * kKiB, CodecId::kKv4p),
                     ColdTier("cold", 1024 * kKiB, 128 * kKiB, CodecId::kKv2p)};
    harness_ = std::make_unique<EngineHarness>(std::move(options));
    session_ = harness_->Open(1);
    model_ = harness_->Register(session_, spec_);
  }
  void Put(uint64_t first, uint64_t count, Durability durability = Durability::kMemory) {
    const auto put = harness_->PutChain(session_, model_, spec_, first, count, durability);
    ASSERT_TRUE(put.ok());
    for (const PutOutcome& block : put->blocks) ASSERT_EQ(block.code, Code::kOk);
  }
  AcquireReply Acquire(uint64_t lease, uint64_t first, uint64_t count) {
    return harness_->AcquireKeys(session_, model_, lease, harness_->ChainKeysOf(first, count)).value();
  }
  size_t Run(uint64_t first, uint64_t count) {
    return harness_->LookupKeys(session_, model_, harness_->ChainKeysOf(first, count))->run.size();
  }
  uint64_t Moved(TierId from, TierId to) {
    return harness_->metrics().moves[from.value][to.value].blocks.Get();
  }

  ModelSpec spec_ = TinyModel();
  std::unique_ptr<EngineHarness> harness_;
  SessionId session_;
  ModelId model_;
};

TEST_F(GpuTierTest, APutGoesToTheGpuAndNoSessionIsToldOfItsArenas) {
  Put(1, 3);
  EXPECT_EQ(Moved(TierId{kMaxTiers}, kGpu), 3u);
  EXPECT_FALSE(harness_->fake().arenas().empty());
  for (const auto& [id, arena] : harness_->published) EXPECT_NE(arena.tier, kGpu);
  const SessionId later = harness_->Open(2);
  EXPECT_TRUE(harness_->mapped(later).empty());
}

TEST_F(GpuTierTest, AReaderGetsTheBlockInHostMemoryAndTheGpuKeepsIt) {
  Put(1, 3);
  const AcquireReply reply = Acquire(1, 1, 3);
  ASSERT_EQ(reply.run.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const AcquiredBlock& block = reply.run[i];
    EXPECT_EQ(block.place.tier, kWarm);
    EXPECT_EQ(block.served_from, kGpu);
    EXPECT_EQ(block.precision, Precision::kBits16);
    EXPECT_TRUE(harness_->mapped(session_).contains(block.place.container));
    EXPECT_EQ(harness_->fake().At(block.place)->owner, 1 + i);
  }
  EXPECT_EQ(Moved(kGpu, kWarm), 3u);
  // The next reader finds it there.
  ASSERT_EQ(Acquire(2, 1, 3).run.size(), 3u);
  EXPECT_EQ(Moved(kGpu, kWarm), 3u);
  EXPECT_EQ(harness_->metrics().tier[kGpu.value].blocks[static_cast<size_t>(Precision::kBits16)].Get(), 3);
}

TEST_F(GpuTierTest, WhatCameForAReaderIsFreedAndNotMovedDown) {
  Put(1, 3);
  ASSERT_EQ(Acquire(1, 1, 3).run.size(), 3u);
  ASSERT_TRUE(harness_->ReleaseLease(session_, 1).ok());
  const auto demoted = harness_->Call<uint64_t>(AdminDemote{kWarm, 3, {}});
  EXPECT_EQ(demoted.value(), 3u);
  EXPECT_EQ(Moved(kWarm, kCold), 0u);
  EXPECT_EQ(Run(1, 3), 3u);
  ASSERT_EQ(Acquire(2, 1, 3).run.size(), 3u);
  EXPECT_EQ(Moved(kGpu, kWarm), 6u);
}

TEST_F(GpuTierTest, WhatTheGpuHasNoRoomForIsDemotedAsTheNextTierSays) {
  Put(1, 60);  // 480 KiB
  EXPECT_GT(Moved(kGpu, kWarm), 20u);
  EXPECT_EQ(Run(1, 60), 60u);
  uint64_t bytes = 0;
  for (const auto& [id, arena] : harness_->fake().arenas()) {
    if (arena.tier == kGpu) bytes += ArenaBytes(arena.slots, arena.slot_bytes);
  }
  EXPECT_LE(bytes, 256 * kKiB);
  const AcquireReply reply = Acquire(1, 1, 2);
  ASSERT_EQ(reply.run.size(), 2u);
  EXPECT_EQ(reply.run[0].precision, Precision::kInt4);
}

TEST_F(GpuTierTest, ADurablePutIsOnDiskWhileTheGpuHasItAndComesBackAfterARestart) {
  Put(1, 2, Durability::kDurable);
  harness_->Settle();
  EXPECT_EQ(Moved(kGpu, kCold), 2u);
  harness_->Restart();
  session_ = harness_->Open(1);
  model_ = harness_->Register(session_, spec_);
  EXPECT_EQ(Acquire(1, 1, 2).run.size(), 2u);
}

TEST_F(GpuTierTest, APrefetchBringsABlockToTheGpuOrFromItToHostMemory) {
  Put(1, 2);
  const auto prefetch = [&](TierId target) {
    return harness_
        ->Call<uint32_t>(Prefetch{
            session_, model_, TicketId{harness_->next_ticket++}, target, harness_->ChainKeysOf(1, 2), {}})
        .value();
  };
  EXPECT_EQ(prefetch(kGpu), 0u);
  EXPECT_EQ(prefetch(kWarm), 2u);
  harness_->Settle();
  ASSERT_EQ(harness_->Call<uint64_t>(AdminEvict{kGpu, 2, {}}).value(), 2u);
  EXPECT_EQ(prefetch(kGpu), 2u);
  harness_->Settle();
  EXPECT_EQ(Moved(kWarm, kGpu), 2u);
}

TEST_F(GpuTierTest, ADamagedBlockOnTheGpuIsAMissAndCanBePutAgain) {
  Place place;
  harness_->fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    if (const auto* move = std::get_if<MoveJob>(&job.work)) place = move->order.target;
    return std::nullopt;
  };
  Put(1, 1);
  harness_->fake().job_fault = nullptr;
  ASSERT_EQ(place.tier, kGpu);
  harness_->fake().Corrupt(place);
  EXPECT_TRUE(Acquire(1, 1, 1).run.empty());
  EXPECT_EQ(harness_->metrics().quarantined_blocks.Get(), 1u);
  Put(1, 1);
  EXPECT_EQ(Acquire(2, 1, 1).run.size(), 1u);
}

TEST_F(GpuTierTest, ALostGpuTakesItsBlocksWithItAndTheDaemonGoesOnWithTheOtherTiers) {
  Put(1, 3);
  ASSERT_EQ(Acquire(1, 1, 1).run.size(), 1u);
  harness_->fake().LoseGpu(kGpu);
  EXPECT_EQ(Acquire(2, 2, 2).stopped_by, Code::kUnavailable);
  harness_->Settle();
  // The one that is in host memory as well stays, the others are no hits any more.
  EXPECT_EQ(Run(1, 3), 1u);
  EXPECT_EQ(harness_->metrics().tier[kGpu.value].used_bytes.Get(), 0);
  EXPECT_EQ(harness_->metrics().tier[kGpu.value].circuit_open.Get(), 1);
  Put(2, 40);
  EXPECT_EQ(Moved(TierId{kMaxTiers}, kGpu), 3u);
  EXPECT_EQ(Moved(TierId{kMaxTiers}, kWarm), 40u);
  EXPECT_EQ(Acquire(3, 1, 10).run.size(), 10u);
  harness_->engine().CheckInvariants();
  // It does not come back: nothing asks it again.
  harness_->Advance(std::chrono::minutes(1));
  const uint64_t failed = harness_->metrics().moves[kMaxTiers][kGpu.value].failed.Get();
  Put(100, 3);
  EXPECT_EQ(harness_->metrics().moves[kMaxTiers][kGpu.value].failed.Get(), failed);
}

TEST_F(GpuTierTest, APutThatFindsTheGpuLostGoesToTheNextTier) {
  Put(1, 3);
  harness_->fake().LoseGpu(kGpu);
  Put(4, 3);
  EXPECT_EQ(Moved(TierId{kMaxTiers}, kWarm), 3u);
  harness_->Settle();
  EXPECT_EQ(Run(1, 3), 0u);
  EXPECT_EQ(Run(4, 3), 3u);
}

TEST_F(GpuTierTest, ALostGpuIsNoFailureOfTheDiskThatReadsFromIt) {
  Put(1, 1);
  harness_->fake().LoseGpu(kGpu);
  const auto drained = harness_->Call<uint64_t>(AdminDrain{}, std::chrono::seconds(1));
  ASSERT_TRUE(drained.ok());
  EXPECT_EQ(harness_->metrics().tier[kCold.value].circuit_open.Get(), 0);
  EXPECT_EQ(harness_->metrics().tier[kCold.value].write_errors.Get(), 0u);
  EXPECT_EQ(harness_->metrics().tier[kGpu.value].read_errors.Get(), 1u);
}

TEST_F(GpuTierTest, AGpuThatHangsHoldsUpNobodyElse) {
  Put(1, 1);
  harness_->hang_job = [](const Job& job) {
    const auto* move = std::get_if<MoveJob>(&job.work);
    return move != nullptr && move->order.target.tier == kGpu;
  };
  kvtier::Put put;
  put.session = session_;
  put.model = model_;
  put.ticket = TicketId{1000};
  put.blocks.push_back(harness_->ChainBlock(spec_, 2));
  harness_->Send(std::move(put), std::chrono::seconds(60));
  harness_->Settle();
  ASSERT_EQ(harness_->hanging(), 1u);
  harness_->Advance(std::chrono::seconds(3));
  EXPECT_EQ(harness_->metrics().tier[kGpu.value].circuit_open.Get(), 1);
  Put(3, 2);
  EXPECT_EQ(Moved(TierId{kMaxTiers}, kWarm), 2u);
  harness_->ReleaseHanging();
  harness_->Advance(std::chrono::seconds(2));
  Put(5, 1);
  EXPECT_EQ(harness_->metrics().tier[kGpu.value].circuit_open.Get(), 0);
}

TEST_F(GpuTierTest, AGpuGoesAboveTheHostTierThatReadersNeed) {
  const auto make = [](std::vector<TierOptions> tiers) {
    BoundedQueue<Command> commands{16};
    BoundedQueue<Completion> completions{1024};
    BoundedQueue<Job> jobs{1024}, moves{1024};
    FakeLadder fake;
    Metrics metrics;
    std::array<Engine::DeviceQueues, kMaxTiers> devices;
    for (size_t i = 0; i < tiers.size(); ++i) {
      tiers[i].medium = fake.medium(TierId{static_cast<uint8_t>(i)});
      devices[i].moves = &moves;
    }
    class NoEvents final : public EngineEvents {
      void OnArenaPublished(const ArenaSpec&) override {}
      void OnSessionArena(SessionId, const ArenaSpec&) override {}
      void OnArenaRetired(ArenaId, TenantId) override {}
    } events;
    return Engine::Make({.tiers = std::move(tiers), .limits = {}, .hash_seed = 1},
                        {.commands = commands,
                         .completions = completions,
                         .jobs = jobs,
                         .devices = devices,
                         .events = events,
                         .metrics = metrics},
                        {})
        .status()
        .code();
  };
  const TierOptions gpu = TierOnGpu("hot", 256 * kKiB, CodecId::kRaw16);
  const TierOptions host = HostTier("warm", 256 * kKiB, CodecId::kKv4p);
  EXPECT_EQ(make({gpu, host}), Code::kOk);
  EXPECT_EQ(make({host, gpu}), Code::kInvalidArgument);
  EXPECT_EQ(make({gpu}), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier
