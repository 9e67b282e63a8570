#include "tiers/base/block_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "tiers/base/aligned_buffer.h"
#include "tiers/base/block_io_impl.h"
#include "tiers/base/doorbell.h"
#include "tiers/base/memfd.h"

namespace kvtier {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kSeed = 20240607;

TimePoint FarAway() {
  return SteadyClock().Now() + std::chrono::seconds(60);
}

IoRequest Make(IoRequest::Op op, int fd, uint64_t offset, std::span<std::byte> memory) {
  return {.op = op, .fd = fd, .offset = offset, .memory = memory, .status = {}};
}

/// The kinds that work on this machine: the synchronous one always does.
std::vector<BlockIoKind> UsableKinds() {
  std::vector<BlockIoKind> kinds{BlockIoKind::kSync};
  if (MakeBlockIo(BlockIoKind::kUring).ok()) kinds.push_back(BlockIoKind::kUring);
  return kinds;
}

/// What every BlockIo must do.
class BlockIoConformance : public testing::TestWithParam<BlockIoKind> {
 protected:
  void SetUp() override {
    auto io = MakeBlockIo(GetParam());
    ASSERT_TRUE(io.ok()) << io.status().ToString();
    io_ = std::move(io).value();
    auto file = MakeMemoryFile("kvtier-io-test", 0);
    ASSERT_TRUE(file.ok());
    file_ = std::move(file).value();
  }

  std::unique_ptr<BlockIo> io_;
  UniqueFd file_;
};

TEST_P(BlockIoConformance, WritesAndReadsBackABatchLargerThanItsBound) {
  constexpr uint64_t kCount = 5 * kMaxIoInFlight + 3;
  std::mt19937 rng(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::vector<std::byte> written(kCount * kPage), read(kCount * kPage);
  for (std::byte& b : written) b = static_cast<std::byte>(rng());
  std::vector<IoRequest> batch;
  for (uint64_t i = 0; i < kCount; ++i) {
    batch.push_back(
        Make(IoRequest::Op::kWrite, file_.get(), i * kPage, std::span(written).subspan(i * kPage, kPage)));
  }
  ASSERT_TRUE(io_->RunBatch(batch, FarAway()).ok());
  for (uint64_t i = 0; i < kCount; ++i) {
    batch[i] = Make(IoRequest::Op::kRead, file_.get(), i * kPage, std::span(read).subspan(i * kPage, kPage));
  }
  ASSERT_TRUE(io_->RunBatch(batch, FarAway()).ok());
  EXPECT_EQ(written, read);
  IoRequest sync = Make(IoRequest::Op::kDataSync, file_.get(), 0, {});
  EXPECT_TRUE(io_->RunBatch({&sync, 1}, FarAway()).ok());
}

TEST_P(BlockIoConformance, MovesRequestsOfAnySizeAsOne) {
  constexpr uint64_t kSizes[] = {kPage, (1 << 20) + kPage, 512 << 10, 3 << 20};
  std::mt19937_64 rng(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::vector<IoRequest> batch;
  std::vector<std::vector<std::byte>> written, read;
  uint64_t offset = 0;
  for (const uint64_t size : kSizes) {
    std::vector<std::byte>& memory = written.emplace_back(size);
    for (std::byte& b : memory) b = static_cast<std::byte>(rng());
    batch.push_back(Make(IoRequest::Op::kWrite, file_.get(), offset, memory));
    read.emplace_back(size);
    offset += size;
  }
  ASSERT_TRUE(io_->RunBatch(batch, FarAway()).ok());
  offset = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_TRUE(batch[i].status.ok());
    batch[i] = Make(IoRequest::Op::kRead, file_.get(), offset, read[i]);
    offset += read[i].size();
  }
  ASSERT_TRUE(io_->RunBatch(batch, FarAway()).ok());
  EXPECT_EQ(read, written);
}

TEST_P(BlockIoConformance, S49_ALargeReadPastTheEndIsAnErrorOfThatRequestAlone) {
  ASSERT_EQ(::ftruncate(file_.get(), 1 << 20), 0);
  std::vector<std::byte> beyond(2 << 20), inside(1 << 20);
  IoRequest batch[] = {
      Make(IoRequest::Op::kRead, file_.get(), 0, beyond),
      Make(IoRequest::Op::kRead, file_.get(), 0, inside),
  };
  EXPECT_EQ(io_->RunBatch(batch, FarAway()).code(), Code::kDataLoss);
  EXPECT_EQ(batch[0].status.code(), Code::kDataLoss);
  EXPECT_TRUE(batch[1].status.ok());
}

TEST_P(BlockIoConformance, AnEmptyBatchIsDone) {
  EXPECT_TRUE(io_->RunBatch({}, FarAway()).ok());
}

TEST_P(BlockIoConformance, S49_AShortReadIsAnErrorOfThatRequestAlone) {
  ASSERT_EQ(::ftruncate(file_.get(), 6000), 0);
  std::vector<std::byte> whole(6000), beyond(kPage), after(kPage);
  IoRequest batch[] = {
      Make(IoRequest::Op::kRead, file_.get(), 0, whole),
      Make(IoRequest::Op::kRead, file_.get(), 4096, beyond),
      Make(IoRequest::Op::kRead, file_.get(), 1 << 20, after),
  };
  EXPECT_EQ(io_->RunBatch(batch, FarAway()).code(), Code::kDataLoss);
  EXPECT_TRUE(batch[0].status.ok());
  EXPECT_EQ(batch[1].status.code(), Code::kDataLoss);
  EXPECT_EQ(batch[2].status.code(), Code::kDataLoss);
}

TEST_P(BlockIoConformance, S49_EveryRequestGetsItsStatusAndTheNextBatchWorks) {
  std::vector<std::byte> bytes(kPage);
  std::vector<IoRequest> batch;
  for (int i = 0; i < 200; ++i) {
    batch.push_back(Make(IoRequest::Op::kWrite, i % 3 == 0 ? -1 : file_.get(), 0, bytes));
    batch.back().status = Status(Code::kInternal, "never set");
  }
  EXPECT_EQ(io_->RunBatch(batch, FarAway()).code(), Code::kUnavailable);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(batch[i].status.code(), i % 3 == 0 ? Code::kUnavailable : Code::kOk) << i;
  }
  IoRequest good = Make(IoRequest::Op::kRead, file_.get(), 0, bytes);
  EXPECT_TRUE(io_->RunBatch({&good, 1}, FarAway()).ok());
}

TEST_P(BlockIoConformance, RegisteredMemoryAndWhatLiesAcrossItsEndsMoveTheSameBytes) {
  constexpr uint64_t kPages = 8;
  AlignedBuffer buffer;
  const std::span<std::byte> all = buffer.Reserve(kPages * kPage).value();
  io_->RegisterMemory(all.subspan(2 * kPage, 4 * kPage));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i / kPage + 1);
  const uint64_t starts[] = {0, kPage, 2 * kPage, 3 * kPage, 5 * kPage, 6 * kPage};
  for (const uint64_t start : starts) {
    SCOPED_TRACE(start);
    const std::span<std::byte> memory = all.subspan(start, 2 * kPage);
    const std::vector<std::byte> before(memory.begin(), memory.end());
    IoRequest write = Make(IoRequest::Op::kWrite, file_.get(), start, memory);
    ASSERT_TRUE(io_->RunBatch({&write, 1}, FarAway()).ok());
    std::ranges::fill(memory, std::byte{0});
    IoRequest read = Make(IoRequest::Op::kRead, file_.get(), start, memory);
    ASSERT_TRUE(io_->RunBatch({&read, 1}, FarAway()).ok());
    EXPECT_TRUE(std::ranges::equal(memory, before));
  }
}

TEST_P(BlockIoConformance, AFullFileSystemIsResourceExhausted) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  std::vector<std::byte> bytes(kPage);
  IoRequest request = Make(IoRequest::Op::kWrite, full.get(), 0, bytes);
  EXPECT_EQ(io_->RunBatch({&request, 1}, FarAway()).code(), Code::kResourceExhausted);
}

TEST_P(BlockIoConformance, StartsNothingAfterTheDeadline) {
  ASSERT_EQ(::ftruncate(file_.get(), kPage), 0);
  std::vector<std::byte> bytes(kPage, std::byte{1});
  IoRequest request = Make(IoRequest::Op::kRead, file_.get(), 0, bytes);
  EXPECT_EQ(io_->RunBatch({&request, 1}, SteadyClock().Now()).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(request.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(bytes, std::vector<std::byte>(kPage, std::byte{1}));
}

/// Gives requests until there have been `count`, at most `width` at once.
class Refilling final : public IoStream {
 public:
  Refilling(std::vector<IoRequest>& requests, size_t width) : requests_(requests), width_(width) {}
  IoRequest* Next() override {
    if (next_ == requests_.size() || next_ - done_ == width_) return nullptr;
    requests_[next_].tag = next_;
    return &requests_[next_++];
  }
  void Done(IoRequest& request) override {
    EXPECT_EQ(&requests_[request.tag], &request);
    EXPECT_NE(request.status.code(), Code::kPending);
    ++done_;
  }
  size_t done() const { return done_; }

 private:
  std::vector<IoRequest>& requests_;
  const size_t width_;
  size_t next_ = 0, done_ = 0;
};

TEST_P(BlockIoConformance, AStreamIsRefilledUntilItGivesNoMore) {
  constexpr uint64_t kCount = 150;
  std::mt19937_64 rng(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (const size_t width : {size_t{1}, size_t{7}, size_t{200}}) {
    std::vector<std::vector<std::byte>> written, read;
    std::vector<IoRequest> requests;
    uint64_t offset = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      std::vector<std::byte>& memory = written.emplace_back(kPage * (i % 20 == 0 ? 300 : 1 + rng() % 4));
      for (size_t at = 0; at < memory.size(); at += 512) memory[at] = static_cast<std::byte>(rng());
      requests.push_back(Make(IoRequest::Op::kWrite, i == 5 ? -1 : file_.get(), offset, memory));
      offset += memory.size();
    }
    Refilling writes(requests, width);
    io_->RunStream(writes, FarAway());
    EXPECT_EQ(writes.done(), kCount);
    offset = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(requests[i].status.code(), i == 5 ? Code::kUnavailable : Code::kOk) << i;
      requests[i] = Make(IoRequest::Op::kRead, file_.get(), offset, read.emplace_back(written[i].size()));
      offset += written[i].size();
    }
    std::ranges::fill(written[5], std::byte{0});
    Refilling reads(requests, width);
    io_->RunStream(reads, FarAway());
    EXPECT_EQ(reads.done(), kCount);
    EXPECT_EQ(read, written) << width;
    ASSERT_EQ(::ftruncate(file_.get(), 0), 0);
  }
}

TEST_P(BlockIoConformance, AStreamPastItsDeadlineStillGivesEveryRequestItsStatus) {
  ASSERT_EQ(::ftruncate(file_.get(), kPage), 0);
  std::vector<std::byte> bytes(kPage);
  std::vector<IoRequest> requests(100, Make(IoRequest::Op::kRead, file_.get(), 0, bytes));
  Refilling stream(requests, 3);
  io_->RunStream(stream, SteadyClock().Now());
  EXPECT_EQ(stream.done(), requests.size());
  for (const IoRequest& request : requests) EXPECT_EQ(request.status.code(), Code::kDeadlineExceeded);
}

/// A read that ends only when another request, which comes while it waits, has written what it reads.
class LateWriter final : public IoStream {
 public:
  LateWriter(int from, int to) : wake_(std::make_shared<const Doorbell>()) {
    requests_[0] = Make(IoRequest::Op::kRead, from, 0, read_);
    requests_[1] = Make(IoRequest::Op::kWrite, to, 0, written_);
  }
  IoRequest* Next() override {
    const bool late = next_ == 1 && !called_.load();
    return next_ == 2 || late ? nullptr : &requests_[next_++];
  }
  void Done(IoRequest&) override {}
  int WakeDescriptor() const override { return wake_->fd(); }
  void Woken() override {
    ++woken_;
    wake_->Silence();
  }
  /// By another thread.
  void Call() {
    called_ = true;
    wake_->Ring();
  }
  const IoRequest& request(size_t i) const { return requests_[i]; }
  uint32_t woken() const { return woken_; }

 private:
  const std::shared_ptr<const Doorbell> wake_;
  std::array<std::byte, 16> read_{}, written_{};
  std::array<IoRequest, 2> requests_;
  size_t next_ = 0;
  uint32_t woken_ = 0;
  std::atomic<bool> called_{false};
};

TEST(MakeBlockIo, AStreamThatIsWokenGivesItsNextRequestWhileTheOthersAreUnderWay) {
  auto io = MakeBlockIo(BlockIoKind::kUring);
  if (!io.ok()) GTEST_SKIP() << io.status().ToString();
  for (int round = 0; round < 3; ++round) {  // each with another descriptor
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd read_end(ends[0]), write_end(ends[1]);
    LateWriter stream(read_end.get(), write_end.get());
    std::thread caller([&] { stream.Call(); });
    // Sooner than any wait without a wake would end.
    (*io)->RunStream(stream, SteadyClock().Now() + std::chrono::seconds(5));
    caller.join();
    EXPECT_TRUE(stream.request(0).status.ok()) << stream.request(0).status.ToString();
    EXPECT_TRUE(stream.request(1).status.ok()) << stream.request(1).status.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BlockIoConformance, testing::ValuesIn(UsableKinds()), [](const auto& info) {
  return info.param == BlockIoKind::kUring ? std::string("io_uring") : std::string("sync");
});

TEST(MakeBlockIo, S49_ARequestThatNeverCompletesIsCancelledAndItsMemoryComesBackUntouched) {
  auto io = MakeBlockIo(BlockIoKind::kAuto);
  ASSERT_TRUE(io.ok());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::vector<std::byte> bytes(16), others(100 * 16);
  std::vector<IoRequest> batch{Make(IoRequest::Op::kRead, read_end.get(), 0, bytes)};
  for (int i = 0; i < 100; ++i) {
    batch.push_back(Make(IoRequest::Op::kRead, read_end.get(), 0, std::span(others).subspan(i * 16, 16)));
  }
  const Status status = (*io)->RunBatch(batch, SteadyClock().Now() + std::chrono::milliseconds(5));
  // The synchronous kind cannot read a pipe at an offset at all.
  const Code expected =
      std::string_view((*io)->name()) == "sync" ? Code::kUnavailable : Code::kDeadlineExceeded;
  EXPECT_EQ(status.code(), expected);
  for (const IoRequest& request : batch) EXPECT_EQ(request.status.code(), expected);
  ASSERT_EQ(::write(write_end.get(), "0123456789abcdef", 16), 16);
  EXPECT_EQ(bytes, std::vector<std::byte>(16));
  EXPECT_EQ(others, std::vector<std::byte>(100 * 16));
}

TEST(MakeBlockIo, S49_ALargeRequestThatNeverCompletesEndsWithAllItsParts) {
  auto io = MakeBlockIo(BlockIoKind::kUring);
  if (!io.ok()) GTEST_SKIP() << io.status().ToString();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  // More parts than can be in flight: some are never begun.
  std::vector<std::byte> large(uint64_t{80} << 20), small(16);
  std::vector<IoRequest> batch{Make(IoRequest::Op::kRead, read_end.get(), 0, large),
                               Make(IoRequest::Op::kRead, read_end.get(), 0, small)};
  const Status status = (*io)->RunBatch(batch, SteadyClock().Now() + std::chrono::milliseconds(5));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  for (const IoRequest& request : batch) EXPECT_EQ(request.status.code(), Code::kDeadlineExceeded);
}

/// Runs in a child process under a filter that answers EPERM to one system call: 0 when kAuto fell back and
/// works.
int RunWithoutSyscall(int number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = 4, .filter = filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 10;
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 11;
  if (MakeBlockIo(BlockIoKind::kUring).ok()) return 12;
  auto io = MakeBlockIo(BlockIoKind::kAuto);
  if (!io.ok() || std::string_view((*io)->name()) != "sync") return 13;
  auto file = MakeMemoryFile("kvtier-io-test", kPage);
  if (!file.ok()) return 14;
  std::vector<std::byte> bytes(kPage);
  IoRequest request = Make(IoRequest::Op::kRead, file->get(), 0, bytes);
  return (*io)->RunBatch({&request, 1}, FarAway()).ok() ? 0 : 15;
}

TEST(MakeBlockIo, S38_FallsBackToSynchronousCallsWhereIoUringIsForbidden) {
  for (int number : {SYS_io_uring_setup, SYS_io_uring_enter}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(RunWithoutSyscall(number));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "system call " << number;
  }
}

TEST(AdvanceRequest, S49_RetriesInterruptionsABoundedNumberOfTimes) {
  std::vector<std::byte> bytes(kPage);
  for (int error : {EINTR, EAGAIN}) {
    IoRequest request = Make(IoRequest::Op::kRead, 0, 0, bytes);
    IoProgress progress;
    for (uint32_t i = 0; i < kMaxIoRetries; ++i) {
      ASSERT_EQ(AdvanceRequest(request, progress, -error), IoStep::kAgain);
    }
    EXPECT_EQ(AdvanceRequest(request, progress, -error), IoStep::kFinished);
    EXPECT_EQ(request.status.code(), Code::kUnavailable);
  }
}

TEST(AdvanceRequest, S49_GoesOnAfterShortTransfersAndReportsDeviceErrors) {
  std::vector<std::byte> bytes(kPage);
  IoRequest request = Make(IoRequest::Op::kWrite, 0, 0, bytes);
  IoProgress progress;
  EXPECT_EQ(AdvanceRequest(request, progress, 1000), IoStep::kAgain);
  EXPECT_EQ(progress.done_bytes, 1000u);
  EXPECT_EQ(AdvanceRequest(request, progress, 3096), IoStep::kFinished);
  EXPECT_TRUE(request.status.ok());

  progress = {};
  EXPECT_EQ(AdvanceRequest(request, progress, 1000), IoStep::kAgain);
  EXPECT_EQ(AdvanceRequest(request, progress, -EIO), IoStep::kFinished);
  EXPECT_EQ(request.status.code(), Code::kUnavailable);

  progress = {};
  EXPECT_EQ(AdvanceRequest(request, progress, 0), IoStep::kFinished);
  EXPECT_EQ(request.status.code(), Code::kUnavailable) << "a write that moves nothing must not loop";
}

}  // namespace
}  // namespace kvtier
