#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "tiers/base/block_io_impl.h"

namespace kvtier {
namespace {

/// Room for a full load of requests and the cancellation.
constexpr unsigned kRingEntries = 2 * kMaxIoInFlight;
constexpr uint64_t kCancelTag = ~uint64_t{0};
/// io_uring_enter failing in a row before the ring counts as broken.
constexpr uint32_t kMaxEnterFailures = 1000;
/// Larger requests go to the device in parts of this size, all at once: a queue keeps a device busier than
/// one long transfer does.
constexpr uint64_t kPartBytes = uint64_t{512} << 10;
/// Longest single wait; a far deadline is waited for in slices.
constexpr Duration kMaxWait = std::chrono::seconds(10);

/// Newest first: SINGLE_ISSUER and DEFER_TASKRUN came with Linux 6.0 and 6.1, COOP_TASKRUN with 5.19.
constexpr unsigned kSetupFlags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL,
    0,
};

/// Owns one ring.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open_) io_uring_queue_exit(&ring_);
  }

  Status Open() {
    int error = 0;
    for (unsigned flags : kSetupFlags) {
      error = -io_uring_queue_init(kRingEntries, &ring_, flags);
      if (error == 0) {
        open_ = true;
        // Without it, waiting with a timeout would need timeout entries in the ring itself (before
        // Linux 5.11).
        if ((ring_.features & IORING_FEAT_EXT_ARG) == 0) {
          return Status(Code::kUnavailable, "io_uring of this kernel is too old");
        }
        return Status::Ok();
      }
    }
    return Status(Code::kUnavailable, StatusFromErrno(error, "io_uring setup").message());
  }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool open_ = false;
};

void AppendParts(const IoRequest& request, std::vector<IoRequest>& parts) {
  uint64_t at = 0;
  do {
    IoRequest& part = parts.emplace_back(request);
    part.offset = request.offset + at;
    part.memory = request.memory.subspan(at, std::min<uint64_t>(kPartBytes, request.memory.size() - at));
    at += part.memory.size();
  } while (at < request.memory.size());
}

/// The request's status is that of the first of its parts, which begin at `part`, that failed. Returns where
/// the next request's begin.
std::vector<IoRequest>::iterator TakeStatus(std::vector<IoRequest>::iterator part, IoRequest& request) {
  request.status = Status::Ok();
  uint64_t at = 0;
  do {
    at += part->memory.size();
    if (request.status.ok()) request.status = std::move(part->status);
    ++part;
  } while (at < request.memory.size());
  return part;
}

class UringBlockIo final : public BlockIo {
 public:
  Status Open() { return ring_.Open(); }
  Status RunBatch(std::span<IoRequest> requests, TimePoint deadline) override;
  const char* name() const override { return "io_uring"; }

 private:
  void RunParts(std::span<IoRequest> requests, TimePoint deadline);
  void Drive(TimePoint deadline) noexcept;
  void MarkBroken();
  void Submit(uint32_t index);
  void FillRing();
  void SubmitCancel();
  int Enter(TimePoint deadline);
  void Reap();
  void GiveUp(const char* why, Code code);
  uint32_t KernelOwned() { return in_flight_ - io_uring_sq_ready(ring_.get()); }

  Ring ring_;
  bool broken_ = false;

  // One batch.
  std::span<IoRequest> requests_;
  std::vector<IoProgress> progress_;
  std::vector<uint32_t> again_;  ///< to be submitted once more for their rest
  uint32_t next_ = 0;            ///< first request never submitted
  uint32_t in_flight_ = 0;       ///< entries submitted or in the submission ring, the cancellation included
  bool expired_ = false;
};

Status UringBlockIo::RunBatch(std::span<IoRequest> requests, TimePoint deadline) {
  const bool any_large =
      std::ranges::any_of(requests, [](const IoRequest& r) { return r.memory.size() > kPartBytes; });
  if (any_large) {
    std::vector<IoRequest> parts;
    for (const IoRequest& request : requests) AppendParts(request, parts);
    RunParts(parts, deadline);
    auto part = parts.begin();
    for (IoRequest& request : requests) part = TakeStatus(part, request);
  } else {
    RunParts(requests, deadline);
  }
  for (const IoRequest& request : requests) {
    if (!request.status.ok()) return request.status;
  }
  return Status::Ok();
}

void UringBlockIo::RunParts(std::span<IoRequest> requests, TimePoint deadline) {
  requests_ = requests;
  progress_.assign(requests.size(), {});
  again_.clear();
  again_.reserve(requests.size());
  next_ = 0;
  in_flight_ = 0;
  expired_ = false;
  if (broken_) {
    GiveUp("the ring is broken", Code::kUnavailable);
  } else {
    Drive(deadline);
  }
}

/// Leaves nothing in flight. An exception must not unwind past memory that the kernel still uses: hence
/// noexcept.
void UringBlockIo::Drive(TimePoint deadline) noexcept {
  uint32_t failures = 0;
  while (true) {
    if (!expired_ && std::chrono::steady_clock::now() >= deadline) {
      expired_ = true;
      if (in_flight_ > 0) SubmitCancel();
    }
    if (expired_) GiveUp("I/O not finished in time", Code::kDeadlineExceeded);
    FillRing();
    if (in_flight_ == 0) return;
    // After the deadline this waits for as long as the kernel holds the memory: returning earlier would let a
    // late completion write into memory that has a new owner.
    const int error = Enter(expired_ ? TimePoint::max() : deadline);
    Reap();
    failures = error == 0 ? 0 : failures + 1;
    const bool transient = error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM;
    if (error != 0 && (!transient || failures > kMaxEnterFailures)) {
      MarkBroken();
      return;
    }
  }
}

/// The kernel takes no more entries: ends every request and uses the ring no more.
void UringBlockIo::MarkBroken() {
  // What the kernel already holds could not be taken back from here: going on would corrupt memory.
  KVTIER_CHECK(KernelOwned() == 0);
  broken_ = true;
  for (uint32_t i = 0; i < next_; ++i) {
    if (requests_[i].status.code() == Code::kPending) {
      requests_[i].status = Status(Code::kUnavailable, "io_uring_enter failed");
    }
  }
  GiveUp("io_uring_enter failed", Code::kUnavailable);
}

/// Ends every request that is not in the ring.
void UringBlockIo::GiveUp(const char* why, Code code) {
  for (uint32_t index : again_) requests_[index].status = Status(code, why);
  again_.clear();
  for (; next_ < requests_.size(); ++next_) requests_[next_].status = Status(code, why);
}

void UringBlockIo::FillRing() {
  while (in_flight_ < kMaxIoInFlight) {
    if (!again_.empty()) {
      const uint32_t index = again_.back();
      again_.pop_back();
      Submit(index);
    } else if (next_ < requests_.size()) {
      requests_[next_].status = Status(Code::kPending, "in flight");
      Submit(next_++);
    } else {
      return;
    }
  }
}

void UringBlockIo::Submit(uint32_t index) {
  const IoRequest& request = requests_[index];
  const uint64_t done = progress_[index].done_bytes;
  std::byte* memory = request.memory.data() + done;
  const auto bytes = static_cast<unsigned>(request.memory.size() - done);
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  KVTIER_CHECK(entry != nullptr);
  switch (request.op) {
    case IoRequest::Op::kRead:
      io_uring_prep_read(entry, request.fd, memory, bytes, request.offset + done);
      break;
    case IoRequest::Op::kWrite:
      io_uring_prep_write(entry, request.fd, memory, bytes, request.offset + done);
      break;
    case IoRequest::Op::kDataSync:
      io_uring_prep_fsync(entry, request.fd, IORING_FSYNC_DATASYNC);
      break;
  }
  io_uring_sqe_set_data64(entry, index);
  ++in_flight_;
}

void UringBlockIo::SubmitCancel() {
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  KVTIER_CHECK(entry != nullptr);
  io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
  io_uring_sqe_set_data64(entry, kCancelTag);
  ++in_flight_;
}

/// Submits what is in the ring and waits for one completion. Returns 0 (also at the deadline) or an errno.
int UringBlockIo::Enter(TimePoint deadline) {
  const Duration left = deadline - std::chrono::steady_clock::now();
  const int64_t wait_ns = std::clamp<int64_t>(left.count(), 0, kMaxWait.count());
  __kernel_timespec timeout{.tv_sec = wait_ns / 1'000'000'000, .tv_nsec = wait_ns % 1'000'000'000};
  io_uring_cqe* ignored = nullptr;
  const int returned = io_uring_submit_and_wait_timeout(ring_.get(), &ignored, 1, &timeout, nullptr);
  return returned >= 0 || returned == -ETIME ? 0 : -returned;
}

void UringBlockIo::Reap() {
  io_uring_cqe* entry = nullptr;
  while (io_uring_peek_cqe(ring_.get(), &entry) == 0) {
    const uint64_t tag = io_uring_cqe_get_data64(entry);
    const int returned = entry->res;
    io_uring_cqe_seen(ring_.get(), entry);
    KVTIER_CHECK(in_flight_ > 0);
    --in_flight_;
    if (tag == kCancelTag) continue;
    const auto index = static_cast<uint32_t>(tag);
    if (returned == -ECANCELED) {
      requests_[index].status = Status(Code::kDeadlineExceeded, "I/O cancelled at its deadline");
    } else if (AdvanceRequest(requests_[index], progress_[index], returned) == IoStep::kAgain) {
      again_.push_back(index);
    }
  }
}

}  // namespace

Result<std::unique_ptr<BlockIo>> MakeUringBlockIo() {
  auto io = std::make_unique<UringBlockIo>();
  KVTIER_TRY(io->Open());
  return std::unique_ptr<BlockIo>(std::move(io));
}

}  // namespace kvtier
