#include <algorithm>
#include <cctype>
#include <latch>
#include <set>
#include <string>
#include <utility>

#include "tests/support/faulty_medium.h"
#include "tests/tiers/transfer_fixture.h"
#include "tiers/base/memfd.h"

namespace kvtier {
namespace {

/// Images in a file, by slot. The first read waits until it is let go on; each block whose slot is in `bad`
/// fails. One worker at a time.
class FileMedium final : public Medium, public DeviceMedium {
 public:
  FileMedium() : file_(MakeMemoryFile("kvtier-device", kSlots * kSlotBytes).value()) {}

  DeviceMedium* device() override { return this; }
  void StartRead(PartRead& read) override {
    if (refused.contains(read.place.slot)) {
      read.bytes = Status(Code::kUnavailable, "refused");
      return;
    }
    Note("r", read.place);
    if (std::exchange(gated_, false)) {
      first_came.count_down();
      go_on.wait();
    }
    const std::span<std::byte> memory = read.bounce->Reserve(kSlotBytes).value();
    read.device = {.io = Request(IoRequest::Op::kRead, read.place, memory), .keep = {}};
  }
  void EndRead(PartRead& read) override {
    Note("R", read.place);
    const IoRequest io = *std::exchange(read.device, {}).io;
    if (io.status.ok()) {
      read.bytes = std::span<const std::byte>(io.memory).first(image_bytes.at(read.place.slot));
    } else {
      read.bytes = io.status;
    }
  }
  bool ReadyFor(const Place& place) const override { return !unready.contains(place.slot); }
  void StartWrite(PartWrite& write) override {
    Note("w", write.place);
    image_bytes[write.place.slot] = write.image_bytes;
    write.device = {.io = Request(IoRequest::Op::kWrite, write.place, write.built.first(write.image_bytes)),
                    .keep = {}};
  }
  void EndWrite(PartWrite& write) override {
    Note("W", write.place);
    write.status = std::exchange(write.device, {}).io->status;
  }

  Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) override {
    PartRead read{.place = place, .bounce = &bounce};
    StartRead(read);
    io.RunBatch({&*read.device.io, 1}, InAMinute()).IgnoreBecause("the request carries it");
    EndRead(read);
    return std::move(read.bytes);
  }
  Result<std::span<std::byte>> BeginWrite(const Place&, AlignedBuffer& bounce) override {
    return bounce.Reserve(kSlotBytes);
  }
  Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built, uint64_t bytes,
                     const RecordMeta& meta) override {
    PartWrite write{.place = place, .built = built, .image_bytes = bytes, .meta = meta};
    StartWrite(write);
    io.RunBatch({&*write.device.io, 1}, InAMinute()).IgnoreBecause("the request carries it");
    EndWrite(write);
    return write.status;
  }

  std::latch first_came{1}, go_on{1};
  std::set<uint32_t> bad, unready, refused;  ///< slots; reads that are refused make no request
  std::map<uint32_t, uint64_t> image_bytes;  ///< by slot
  std::vector<std::string> events;           ///< "r3": a read of slot 3 begins, "R3": ends; "w3" and "W3"
  size_t most_under_way = 0;
  std::vector<const std::byte*> memories;  ///< of the requests

 private:
  IoRequest Request(IoRequest::Op op, const Place& place, std::span<std::byte> memory) {
    memories.push_back(memory.data());
    return {.op = op,
            .fd = bad.contains(place.slot) ? -1 : file_.get(),
            .offset = place.slot * kSlotBytes,
            .memory = memory,
            .status = {}};
  }
  void Note(const char* what, const Place& place) {
    events.push_back(what + std::to_string(place.slot));
    under_way_ += std::islower(*what) ? 1 : -1;
    most_under_way = std::max(most_under_way, static_cast<size_t>(under_way_));
  }

  UniqueFd file_;
  bool gated_ = true;
  int under_way_ = 0;
};

class TransferStreamTest : public TransferWorkersTest {
 protected:
  static constexpr uint32_t kFirst = kSlots - 1;

  /// Every block is in the hot arena; those below `on_device`, and kFirst, on the device too.
  void Begin(uint32_t on_device, BlockIoKind io = BlockIoKind::kAuto) {
    StartWorkers(1, 256, io);
    CreateArenas();
    for (uint32_t n = 0; n < kSlots; ++n) Push(MoveJob{PutOrder(n)});
    for (uint32_t n = 0; n < kSlots; ++n) {
      if (n < on_device || n == kFirst) Push(WriteJob(n));
    }
    Collect(kSlots + on_device + 1);
    medium_.events.clear();
    medium_.most_under_way = 0;
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
  /// What is pushed by `push` waits behind one read.
  std::map<JobId, Completion> RunBehindOne(size_t count, const std::function<void()>& push) {
    Push(ReadJob(kFirst));
    medium_.first_came.wait();
    push();
    medium_.go_on.count_down();
    std::map<JobId, Completion> done = Collect(count + 1);
    workers_->Stop();
    return done;
  }
  void ExpectWhole(Medium& medium, const std::vector<uint32_t>& slots) {
    AlignedBuffer bounce;
    auto io = MakeBlockIo(BlockIoKind::kSync).value();
    for (const uint32_t n : slots) {
      const auto image = ParseImage(medium.Read(SlotOf(kWarm, n), *io, bounce).value());
      EXPECT_TRUE(MatchIdentity(*image, MakeIdentity(n)).ok() && VerifyImage(*image).ok()) << n;
    }
  }
  size_t TurnOf(const std::string& event) const {
    const auto at = std::ranges::find(medium_.events, event);
    EXPECT_NE(at, medium_.events.end()) << event;
    return static_cast<size_t>(at - medium_.events.begin());
  }

  FileMedium medium_;
};

TEST_F(TransferStreamTest, ReadsAndWritesAreUnderWayTogether) {
  Begin(/*on_device=*/4);
  const auto done = RunBehindOne(8, [&] {
    for (uint32_t n = 0; n < 4; ++n) Push(ReadJob(n));
    for (uint32_t n = 4; n < 8; ++n) Push(WriteJob(n));
  });
  for (const auto& [id, completion] : done) EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(medium_.most_under_way, 9u);
  ExpectWhole(arenas_, {0, 1, 2, 3});
  ExpectWhole(medium_, {4, 5, 6, 7});
}

TEST_F(TransferStreamTest, WhatFitsMovesThroughTheMemoryThatIsRegistered) {
  Begin(/*on_device=*/4);
  medium_.memories.clear();
  RunBehindOne(8, [&] {
    for (uint32_t n = 0; n < 4; ++n) Push(ReadJob(n));
    for (uint32_t n = 4; n < 8; ++n) Push(WriteJob(n));
  });
  std::ranges::sort(medium_.memories);
  ASSERT_EQ(medium_.memories.size(), 9u);
  EXPECT_EQ(std::ranges::adjacent_find(medium_.memories), medium_.memories.end()) << "all are under way";
  for (const std::byte* at : medium_.memories) {
    const auto from_first = static_cast<uint64_t>(at - medium_.memories.front());
    EXPECT_LT(from_first, IoMemory::kBytes);
    EXPECT_EQ(from_first % IoMemory::kChunkBytes, 0u);
  }
}

TEST_F(TransferStreamTest, AWorkerTakesNoMoreThanItsBound) {
  Begin(/*on_device=*/kFirst);
  RunBehindOne(kFirst, [&] {
    for (uint32_t n = 0; n < kFirst; ++n) Push(ReadJob(n));
  });
  EXPECT_EQ(medium_.most_under_way, kMaxStreamJobs);
}

TEST_F(TransferStreamTest, OfLargeBlocksAWorkerTakesFew) {
  Begin(/*on_device=*/8);
  RunBehindOne(8, [&] {
    for (uint32_t n = 0; n < 8; ++n) {
      MoveJob job = ReadJob(n);
      job.order.source.bytes = kMaxStreamBytes / 2;
      Push(std::move(job));
    }
  });
  EXPECT_EQ(medium_.most_under_way, 3u) << "the small one, and two of half the bound";
}

TEST_F(TransferStreamTest, UrgentOnesComeFirst) {
  Begin(/*on_device=*/4);
  RunBehindOne(4, [&] {
    for (uint32_t n = 4; n < 6; ++n) Push(WriteJob(n));
    for (uint32_t n = 2; n < 4; ++n) {
      EXPECT_TRUE(jobs_.TryPushUrgent(Job{.id = JobId{next_job_++}, .work = ReadJob(n)}));
    }
  });
  EXPECT_LT(TurnOf("r3"), TurnOf("w4"));
}

TEST_F(TransferStreamTest, WhatCannotStreamWaitsForWhatDoesAndComesBeforeTheRest) {
  Begin(/*on_device=*/4);
  medium_.unready = {5};
  const auto done = RunBehindOne(3, [&] {
    Push(ReadJob(2));
    Push(WriteJob(5));
    Push(ReadJob(3));
  });
  for (const auto& [id, completion] : done) EXPECT_TRUE(completion.status.ok());
  EXPECT_LT(TurnOf("R2"), TurnOf("w5"));
  EXPECT_LT(TurnOf("W5"), TurnOf("r3"));
  ExpectWhole(medium_, {5});
}

TEST_F(TransferStreamTest, OneThatFailsCostsItselfAlone) {
  Begin(/*on_device=*/5);
  medium_.bad = {3, 8};
  std::set<JobId> bad_jobs;
  const auto done = RunBehindOne(10, [&] {
    for (uint32_t n = 0; n < 10; ++n) {
      const JobId id = Push(n < 5 ? ReadJob(n) : WriteJob(n));
      if (medium_.bad.contains(n)) bad_jobs.insert(id);
    }
  });
  for (const auto& [id, completion] : done) {
    const bool bad = bad_jobs.contains(id);
    EXPECT_EQ(completion.status.code(), bad ? Code::kUnavailable : Code::kOk) << id.value;
    EXPECT_EQ(completion.outcome.codec, bad ? CodecId::kNone : CodecId::kRaw16);
  }
}

TEST_F(TransferStreamTest, WhatEndsWithoutARequestIsReported) {
  Begin(/*on_device=*/3);
  medium_.refused = {0, 2};
  medium_.go_on.count_down();
  // First of a stream, alone in it, last of it.
  for (const uint32_t n : {0u, 1u, 2u}) {
    Push(ReadJob(n));
    EXPECT_EQ(Collect(1).begin()->second.status.ok(), n == 1) << n;
  }
  for (const uint32_t n : {1u, 2u}) Push(ReadJob(n));
  Collect(2);
}

TEST_F(TransferStreamTest, S49_AnExceptionCostsItsJobOnly) {
  Begin(/*on_device=*/3);
  FaultyMedium faulty(arenas_);
  faulty.Arm(FaultyMedium::Call::kFinishWrite, FaultyMedium::Fault::kThrow);
  JobId bad{};
  const auto done = RunBehindOne(3, [&] {
    Push(ReadJob(0));
    MoveJob job = ReadJob(1);
    job.order.target_medium = &faulty;
    bad = Push(std::move(job));
    Push(ReadJob(2));
  });
  for (const auto& [id, completion] : done) {
    EXPECT_EQ(completion.status.code(), id == bad ? Code::kInternal : Code::kOk);
  }
  EXPECT_EQ(metrics_.worker_restarts.Get(), 1u);
}

TEST_F(TransferStreamTest, S38_WithoutIoUringEachHasItsTurn) {
  Begin(/*on_device=*/4, BlockIoKind::kSync);
  const auto done = RunBehindOne(8, [&] {
    for (uint32_t n = 0; n < 4; ++n) Push(ReadJob(n));
    for (uint32_t n = 4; n < 8; ++n) Push(WriteJob(n));
  });
  for (const auto& [id, completion] : done) EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(medium_.most_under_way, 1u);
  ExpectWhole(arenas_, {0, 1, 2, 3});
  ExpectWhole(medium_, {4, 5, 6, 7});
}

}  // namespace
}  // namespace kvtier
