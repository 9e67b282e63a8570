#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/arena_slot.h"
#include "tests/support/blocks.h"
#include "tiers/transfer_worker.h"

namespace kvtier {

inline constexpr uint32_t kSlots = 32;
inline constexpr uint64_t kSlotBytes = 128 << 10;
inline constexpr ArenaSpec kHot{
    .id = {0}, .tier = {0}, .tenant = {1}, .slots = kSlots, .slot_bytes = kSlotBytes};
inline constexpr ArenaSpec kWarm{
    .id = {1}, .tier = {1}, .tenant = {1}, .slots = kSlots, .slot_bytes = kSlotBytes};

inline TimePoint InAMinute() {
  return SteadyClock().Now() + std::chrono::minutes(1);
}

class TransferWorkersTest : public testing::Test {
 protected:
  void StartWorkers(uint32_t count, size_t completion_capacity = 256, BlockIoKind io = BlockIoKind::kAuto) {
    completions_ = std::make_unique<BoundedQueue<Completion>>(completion_capacity);
    auto workers = TransferWorkers::Make({.count = count, .io = io, .on_completion = [this] { ++wakes_; }},
                                         jobs_, *completions_, arenas_, metrics_);
    ASSERT_TRUE(workers.ok()) << workers.status().ToString();
    workers_ = std::move(workers).value();
    const Status started = workers_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  JobId Push(decltype(Job::work) work) {
    const JobId id{next_job_++};
    EXPECT_TRUE(jobs_.TryPush(Job{.id = id, .work = std::move(work)}));
    return id;
  }
  /// `count` completions by job; a job that completes twice fails the test.
  std::map<JobId, Completion> Collect(size_t count) {
    std::map<JobId, Completion> done;
    const TimePoint give_up = InAMinute();
    while (done.size() < count && SteadyClock().Now() < give_up) {
      std::optional<Completion> completion = completions_->PopUntil(give_up);
      if (!completion.has_value()) continue;  // woken by a worker that found the queue full
      const JobId id = completion->id;
      EXPECT_TRUE(done.emplace(id, std::move(*completion)).second)
          << "job " << id.value << " completed twice";
    }
    EXPECT_EQ(done.size(), count);
    return done;
  }
  void CreateArenas() {
    Push(CreateArenaJob{kHot});
    Push(CreateArenaJob{kWarm});
    for (const auto& [id, completion] : Collect(2)) ASSERT_TRUE(completion.status.ok());
  }
  MoveOrder PutOrder(uint32_t number) {
    raws_[number] = RandomRaw(SmallShape(), number);
    return {.identity = MakeIdentity(number),
            .meta = {},
            .staged = StagedSource{nullptr, raws_[number]},
            .source = {},
            .source_medium = nullptr,
            .target = SlotOf(kHot, number),
            .target_medium = &arenas_,
            .codec = FindCodec(CodecId::kRaw16)};
  }
  MoveOrder CopyOrder(uint32_t number) {
    MoveOrder order = PutOrder(number);
    order.staged.reset();
    order.source = SlotOf(kHot, number);
    order.source_medium = &arenas_;
    order.target = SlotOf(kWarm, number);
    return order;
  }

  BoundedQueue<Job> jobs_{256};
  std::unique_ptr<BoundedQueue<Completion>> completions_;
  ArenaStore arenas_;
  Metrics metrics_;
  std::atomic<uint64_t> wakes_{0};
  std::map<uint32_t, std::vector<std::byte>> raws_;
  uint64_t next_job_ = 1;
  std::unique_ptr<TransferWorkers> workers_;
};

}  // namespace kvtier
