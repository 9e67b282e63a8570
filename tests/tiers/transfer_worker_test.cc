#include "tiers/transfer_worker.h"

#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <set>
#include <vector>

#include "tests/support/blocks.h"
#include "tests/support/faulty_medium.h"

namespace kvtier {
namespace {

constexpr uint32_t kSlots = 32;
constexpr uint64_t kSlotBytes = 128 << 10;
constexpr ArenaSpec kHot{.id = {0}, .tier = {0}, .tenant = {1}, .slots = kSlots, .slot_bytes = kSlotBytes};
constexpr ArenaSpec kWarm{.id = {1}, .tier = {1}, .tenant = {1}, .slots = kSlots, .slot_bytes = kSlotBytes};

TimePoint InAMinute() {
  return SteadyClock().Now() + std::chrono::minutes(1);
}

Place SlotOf(const ArenaSpec& arena, uint32_t slot) {
  return {.tier = arena.tier,
          .container = arena.id.value,
          .slot = slot,
          .offset = ArenaHeaderBytes(arena.slots) + slot * arena.slot_bytes,
          .bytes = arena.slot_bytes,
          .epoch = 1};
}

class TransferWorkersTest : public testing::Test {
 protected:
  void StartWorkers(uint32_t count, size_t completion_capacity = 256) {
    completions_ = std::make_unique<BoundedQueue<Completion>>(completion_capacity);
    auto workers = TransferWorkers::Make({.count = count, .on_completion = [this] { ++wakes_; }}, jobs_,
                                         *completions_, arenas_, metrics_);
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
    while (done.size() < count) {
      std::optional<Completion> completion = completions_->PopUntil(InAMinute());
      if (!completion.has_value()) break;
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

/// Says how many reads and writes come to it at once. The first submission waits until it is let go on; each
/// block whose slot is in `bad` fails.
class BatchingMedium final : public Medium {
 public:
  explicit BatchingMedium(Medium& medium) : medium_(medium) {}

  Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) override {
    if (bad.contains(place.slot)) return Status(Code::kUnavailable, "injected");
    return medium_.Read(place, io, bounce);
  }
  void ReadParts(std::span<PartRead> reads, BlockIo& io) override {
    Note('r', reads.size());
    Medium::ReadParts(reads, io);
  }
  Result<std::span<std::byte>> BeginWrite(const Place& place, AlignedBuffer& bounce) override {
    return medium_.BeginWrite(place, bounce);
  }
  Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built, uint64_t image_bytes,
                     const RecordMeta& meta) override {
    if (writes_together_ == 0) Note('w', 1);
    if (bad.contains(place.slot)) return Status(Code::kUnavailable, "injected");
    return medium_.FinishWrite(place, io, built, image_bytes, meta);
  }
  void FinishWrites(std::span<PartWrite> writes, BlockIo& io) override {
    Note('w', writes.size());
    writes_together_ = writes.size();
    Medium::FinishWrites(writes, io);
    writes_together_ = 0;
  }
  bool likes_batches() const override { return true; }

  std::latch first_came{1}, go_on{1};
  std::set<uint32_t> bad;
  /// "r3 w1": submissions in order; after the workers have stopped.
  std::string submissions;

 private:
  void Note(char kind, size_t count) {
    const bool first = submissions.empty();
    submissions += (first ? "" : " ") + std::string(1, kind) + std::to_string(count);
    if (!first) return;
    first_came.count_down();
    go_on.wait();
  }

  Medium& medium_;
  size_t writes_together_ = 0;
};

class TransferBatchTest : public TransferWorkersTest {
 protected:
  void SetUp() override {
    StartWorkers(1);
    CreateArenas();
    for (uint32_t n = 0; n < kSlots; ++n) Push(MoveJob{PutOrder(n)});
    Collect(kSlots);
  }
  MoveJob ReadJob(uint32_t number) {
    MoveOrder order = CopyOrder(number);
    order.source_medium = &medium_;
    return {std::move(order)};
  }
  MoveJob WriteJob(uint32_t number) {
    MoveOrder order = CopyOrder(number);
    order.target_medium = &medium_;
    return {std::move(order)};
  }
  /// What is pushed by `push` waits behind one block on the device.
  std::map<JobId, Completion> RunBehindOne(size_t count, const std::function<void()>& push) {
    Push(ReadJob(kSlots - 1));
    medium_.first_came.wait();
    push();
    medium_.go_on.count_down();
    std::map<JobId, Completion> done = Collect(count + 1);
    workers_->Stop();
    return done;
  }

  BatchingMedium medium_{arenas_};
};

TEST_F(TransferBatchTest, SmallReadsThatWaitShareASubmission) {
  const auto done = RunBehindOne(8, [&] {
    for (uint32_t n = 0; n < 8; ++n) Push(ReadJob(n));
  });
  for (const auto& [id, completion] : done) EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(medium_.submissions, "r1 r8");
  AlignedBuffer bounce;
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  for (uint32_t n = 0; n < 8; ++n) {
    const auto image = ParseImage(arenas_.Read(SlotOf(kWarm, n), *io, bounce).value());
    EXPECT_TRUE(MatchIdentity(*image, MakeIdentity(n)).ok()) << n;
  }
}

TEST_F(TransferBatchTest, SmallWritesThatWaitShareASubmission) {
  const auto done = RunBehindOne(8, [&] {
    for (uint32_t n = 0; n < 8; ++n) Push(WriteJob(n));
  });
  for (const auto& [id, completion] : done) EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(medium_.submissions, "r1 w8");
  AlignedBuffer bounce;
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  for (uint32_t n = 0; n < 8; ++n) {
    const auto image = ParseImage(arenas_.Read(SlotOf(kWarm, n), *io, bounce).value());
    EXPECT_TRUE(MatchIdentity(*image, MakeIdentity(n)).ok() && VerifyImage(*image).ok()) << n;
  }
}

TEST_F(TransferBatchTest, ABatchIsBoundedAndReadsAndWritesDoNotMix) {
  RunBehindOne(31, [&] {
    for (uint32_t n = 0; n < 20; ++n) Push(ReadJob(n));
    Push(WriteJob(20));
    for (uint32_t n = 21; n < 31; ++n) Push(ReadJob(n));
  });
  EXPECT_EQ(medium_.submissions, "r1 r16 r4 w1 r10");
}

TEST_F(TransferBatchTest, UrgentOnesComeFirst) {
  RunBehindOne(4, [&] {
    for (uint32_t n = 0; n < 2; ++n) Push(WriteJob(n));
    for (uint32_t n = 2; n < 4; ++n) {
      EXPECT_TRUE(jobs_.TryPushUrgent(Job{.id = JobId{next_job_++}, .work = ReadJob(n)}));
    }
  });
  EXPECT_EQ(medium_.submissions, "r1 r2 w2");
}

TEST_F(TransferBatchTest, OneThatFailsCostsItselfAlone) {
  medium_.bad = {3, 8};
  std::set<JobId> bad_jobs;
  const auto done = RunBehindOne(10, [&] {
    for (uint32_t n = 0; n < 10; ++n) {
      const JobId id = Push(n < 5 ? ReadJob(n) : WriteJob(n));
      if (medium_.bad.contains(n)) bad_jobs.insert(id);
    }
  });
  EXPECT_EQ(medium_.submissions, "r1 r5 w5");
  for (const auto& [id, completion] : done) {
    const bool bad = bad_jobs.contains(id);
    EXPECT_EQ(completion.status.code(), bad ? Code::kUnavailable : Code::kOk) << id.value;
    EXPECT_EQ(completion.outcome.codec, bad ? CodecId::kNone : CodecId::kRaw16);
  }
}

TEST_F(TransferBatchTest, LargeBlocksGoAlone) {
  RunBehindOne(2, [&] {
    for (uint32_t n = 0; n < 2; ++n) {
      MoveJob job = ReadJob(n);
      job.order.source.bytes = kMaxBatchedBlockBytes + kSlotAlign;
      Push(std::move(job));
    }
  });
  EXPECT_EQ(medium_.submissions, "r1 r1 r1");
}

}  // namespace
}  // namespace kvtier
