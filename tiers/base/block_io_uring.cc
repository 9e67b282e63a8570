#include <liburing.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tiers/base/block_io_impl.h"

namespace kvtier {
namespace {

/// Room for a full load of requests, the cancellation and the wake.
constexpr unsigned kRingEntries = 2 * kMaxIoInFlight;
constexpr uint64_t kCancelTag = ~uint64_t{0};
constexpr uint64_t kWakeTag = kCancelTag - 1;
/// So much goes to the device before the stream is asked for more, which may take it a while.
constexpr uint64_t kSubmitBytes = uint64_t{128} << 10;
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

/// A request that is under way, in one part or several.
struct Whole {
  IoRequest* request = nullptr;
  uint64_t split_bytes = 0;  ///< parts were made up to here
  uint32_t parts_out = 0;
  Status status;  ///< of the first part that failed
};

/// What the kernel works on.
struct Part {
  IoRequest io;
  IoProgress progress;
  uint32_t whole = 0;
};

/// The requests of one batch, in order.
class BatchStream final : public IoStream {
 public:
  explicit BatchStream(std::span<IoRequest> requests) : requests_(requests) {}
  IoRequest* Next() override { return next_ < requests_.size() ? &requests_[next_++] : nullptr; }
  void Done(IoRequest&) override {}

 private:
  std::span<IoRequest> requests_;
  size_t next_ = 0;
};

class UringBlockIo final : public BlockIo {
 public:
  UringBlockIo() {
    for (uint32_t i = kMaxIoInFlight; i > 0; --i) {
      free_wholes_.push_back(i - 1);
      free_parts_.push_back(i - 1);
    }
  }
  Status Open() { return ring_.Open(); }
  Status RunBatch(std::span<IoRequest> requests, TimePoint deadline) override;
  void RunStream(IoStream& stream, TimePoint deadline) override;
  void RegisterMemory(std::span<std::byte> memory) override;
  const char* name() const override { return "io_uring"; }
  bool usable() const override { return !broken_; }

 private:
  void Drive(TimePoint deadline) noexcept;
  void MarkBroken();
  void FillRing();
  void SubmitAhead();
  void WatchForWake();
  void StopWatching();
  bool EnterAndReap(TimePoint deadline);
  bool TakeNext();
  void SubmitPartOf(uint32_t whole);
  void Submit(uint32_t part);
  bool IsRegistered(std::span<const std::byte> memory) const;
  void SubmitCancel();
  int Enter(TimePoint deadline);
  void Reap();
  void EndPart(uint32_t part);
  void EndWhole(uint32_t whole);
  void GiveUp(const char* why, Code code);
  io_uring_sqe* NextEntry();
  uint32_t KernelOwned();

  const std::unique_ptr<BlockIo> sync_ = MakeSyncBlockIo();
  Ring ring_;
  bool broken_ = false;
  std::optional<std::span<std::byte>> registered_;  ///< as buffer 0; empty where that was refused
  std::array<Whole, kMaxIoInFlight> wholes_;
  std::array<Part, kMaxIoInFlight> parts_;
  std::vector<uint32_t> free_wholes_, free_parts_;

  // One stream.
  IoStream* stream_ = nullptr;
  std::vector<uint32_t> again_;        ///< parts to be submitted once more for their rest
  std::optional<uint32_t> splitting_;  ///< the whole that has parts left to be made
  uint32_t in_flight_ = 0;  ///< entries submitted or in the submission ring, the cancellation included
  uint64_t unsubmitted_bytes_ = 0;
  bool expired_ = false;

  uint32_t enter_failures_ = 0;  ///< in a row

  bool watching_ = false;  ///< the poll of the stream's wake descriptor is not counted in in_flight_
  uint64_t entries_ = 0;   ///< taken of the submission ring so far
  uint64_t watch_at_ = 0;  ///< the number of them with the poll
};

Status UringBlockIo::RunBatch(std::span<IoRequest> requests, TimePoint deadline) {
  // The ring would hand a sync to another thread, and cannot take it back from there either.
  if (requests.size() == 1 && requests[0].op == IoRequest::Op::kDataSync) {
    return sync_->RunBatch(requests, deadline);
  }
  BatchStream batch(requests);
  RunStream(batch, deadline);
  for (const IoRequest& request : requests) {
    if (!request.status.ok()) return request.status;
  }
  return Status::Ok();
}

void UringBlockIo::RunStream(IoStream& stream, TimePoint deadline) {
  KVTIER_CHECK(stream_ == nullptr);
  stream_ = &stream;
  expired_ = false;
  if (!broken_) Drive(deadline);
  if (broken_) GiveUp("the ring is broken", Code::kUnavailable);
  KVTIER_CHECK(in_flight_ == 0 && free_parts_.size() == parts_.size() &&
               free_wholes_.size() == wholes_.size());
  stream_ = nullptr;
}

/// Leaves nothing in flight. An exception must not unwind past memory that the kernel still uses: hence
/// noexcept.
void UringBlockIo::Drive(TimePoint deadline) noexcept {
  enter_failures_ = 0;
  while (true) {
    if (!expired_ && std::chrono::steady_clock::now() >= deadline) {
      expired_ = true;
      if (in_flight_ > 0) SubmitCancel();
    }
    if (expired_) {
      GiveUp("I/O not finished in time", Code::kDeadlineExceeded);
    } else {
      FillRing();
    }
    if (in_flight_ == 0) return StopWatching();
    if (!expired_) WatchForWake();
    // After the deadline this waits for as long as the kernel holds the memory: returning earlier would let a
    // late completion write into memory that has a new owner.
    const bool works = EnterAndReap(expired_ ? TimePoint::max() : deadline);
    stream_->AllDone();
    if (!works) return MarkBroken();
  }
}

/// False: the ring is broken.
bool UringBlockIo::EnterAndReap(TimePoint deadline) {
  const int error = Enter(deadline);
  Reap();
  enter_failures_ = error == 0 ? 0 : enter_failures_ + 1;
  const bool transient = error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM;
  return error == 0 || (transient && enter_failures_ <= kMaxEnterFailures);
}

/// The kernel takes no more entries: ends every request and uses the ring no more.
void UringBlockIo::MarkBroken() {
  // What the kernel already holds could not be taken back from here: going on would corrupt memory.
  KVTIER_CHECK(KernelOwned() == 0);
  broken_ = true;
  in_flight_ = 0;
  again_.clear();
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    if (parts_[part].io.status.code() != Code::kPending) continue;
    parts_[part].io.status = Status(Code::kUnavailable, "io_uring_enter failed");
    EndPart(part);
  }
}

/// Ends every request that is not in the ring, and those that the stream still gives.
void UringBlockIo::GiveUp(const char* why, Code code) {
  while (!again_.empty()) {
    const uint32_t part = again_.back();
    again_.pop_back();
    parts_[part].io.status = Status(code, why);
    EndPart(part);
  }
  if (splitting_.has_value()) {
    const uint32_t index = *std::exchange(splitting_, std::nullopt);
    if (wholes_[index].status.ok()) wholes_[index].status = Status(code, why);
    if (wholes_[index].parts_out == 0) EndWhole(index);
  }
  while (IoRequest* request = stream_->Next()) {
    request->status = Status(code, why);
    stream_->Done(*request);
  }
}

void UringBlockIo::FillRing() {
  while (!free_parts_.empty()) {
    if (!again_.empty()) {
      const uint32_t part = again_.back();
      again_.pop_back();
      Submit(part);
    } else if (splitting_.has_value() || TakeNext()) {
      SubmitPartOf(*splitting_);
    } else {
      return;
    }
    if (unsubmitted_bytes_ >= kSubmitBytes) SubmitAhead();
  }
}

/// Without a wait. What it does not take, or fails at, is left to Enter.
void UringBlockIo::SubmitAhead() {
  io_uring_submit(ring_.get());
  unsubmitted_bytes_ = 0;
}

void UringBlockIo::WatchForWake() {
  const int wake = stream_->WakeDescriptor();
  if (wake < 0 || watching_) return;
  io_uring_sqe* entry = NextEntry();
  io_uring_prep_poll_add(entry, wake, POLLIN);
  io_uring_sqe_set_data64(entry, kWakeTag);
  watching_ = true;
  watch_at_ = entries_;
}

/// The next stream has another descriptor.
void UringBlockIo::StopWatching() {
  if (!watching_) return;
  io_uring_sqe* entry = NextEntry();
  io_uring_prep_cancel64(entry, kWakeTag, 0);
  io_uring_sqe_set_data64(entry, kCancelTag);
  ++in_flight_;
  while (watching_ || in_flight_ > 0) {
    if (!EnterAndReap(TimePoint::max())) return MarkBroken();
  }
}

io_uring_sqe* UringBlockIo::NextEntry() {
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  KVTIER_CHECK(entry != nullptr);
  ++entries_;
  return entry;
}

/// Of in_flight_.
uint32_t UringBlockIo::KernelOwned() {
  const uint32_t waiting = io_uring_sq_ready(ring_.get());
  const bool poll_waits = watching_ && watch_at_ > entries_ - waiting;
  return in_flight_ + (poll_waits ? 1 : 0) - waiting;
}

bool UringBlockIo::TakeNext() {
  IoRequest* request = stream_->Next();
  if (request == nullptr) return false;
  KVTIER_CHECK(!free_wholes_.empty());  // each has a part
  splitting_ = free_wholes_.back();
  free_wholes_.pop_back();
  wholes_[*splitting_] = {.request = request, .status = {}};
  return true;
}

void UringBlockIo::SubmitPartOf(uint32_t index) {
  Whole& whole = wholes_[index];
  const uint32_t part = free_parts_.back();
  free_parts_.pop_back();
  const uint64_t at = whole.split_bytes, bytes = whole.request->memory.size();
  const uint64_t part_bytes = std::min(kPartBytes, bytes - at);
  parts_[part] = {.io = {.op = whole.request->op,
                         .fd = whole.request->fd,
                         .offset = whole.request->offset + at,
                         .memory = whole.request->memory.subspan(at, part_bytes),
                         .status = Status(Code::kPending, "in flight")},
                  .progress = {},
                  .whole = index};
  ++whole.parts_out;
  whole.split_bytes += part_bytes;
  if (whole.split_bytes == bytes) splitting_.reset();
  Submit(part);
}

/// The part has its status: its entry is free, and with the last one its request is done.
void UringBlockIo::EndPart(uint32_t index) {
  Part& part = parts_[index];
  Whole& whole = wholes_[part.whole];
  if (whole.status.ok()) whole.status = std::move(part.io.status);
  part.io.status = Status::Ok();
  free_parts_.push_back(index);
  if (--whole.parts_out == 0 && splitting_ != part.whole) EndWhole(part.whole);
}

void UringBlockIo::EndWhole(uint32_t index) {
  IoRequest& request = *wholes_[index].request;
  request.status = std::move(wholes_[index].status);
  free_wholes_.push_back(index);
  stream_->Done(request);
}

void UringBlockIo::Submit(uint32_t index) {
  const auto& [io, progress, whole] = parts_[index];
  const uint64_t done = progress.done_bytes;
  std::byte* memory = io.memory.data() + done;
  const auto bytes = static_cast<unsigned>(io.memory.size() - done);
  const bool fixed = IsRegistered({memory, bytes});
  io_uring_sqe* entry = NextEntry();
  unsubmitted_bytes_ += bytes;
  switch (io.op) {
    case IoRequest::Op::kRead:
      if (fixed) {
        io_uring_prep_read_fixed(entry, io.fd, memory, bytes, io.offset + done, 0);
      } else {
        io_uring_prep_read(entry, io.fd, memory, bytes, io.offset + done);
      }
      break;
    case IoRequest::Op::kWrite:
      if (fixed) {
        io_uring_prep_write_fixed(entry, io.fd, memory, bytes, io.offset + done, 0);
      } else {
        io_uring_prep_write(entry, io.fd, memory, bytes, io.offset + done);
      }
      break;
    case IoRequest::Op::kDataSync:
      io_uring_prep_fsync(entry, io.fd, IORING_FSYNC_DATASYNC);
      break;
  }
  io_uring_sqe_set_data64(entry, index);
  ++in_flight_;
}

void UringBlockIo::RegisterMemory(std::span<std::byte> memory) {
  if (registered_.has_value() || memory.empty()) return;
  const iovec range{.iov_base = memory.data(), .iov_len = memory.size()};
  // Refused where the process may not lock so much.
  const bool done = io_uring_register_buffers(ring_.get(), &range, 1) == 0;
  registered_ = done ? memory : std::span<std::byte>();
}

bool UringBlockIo::IsRegistered(std::span<const std::byte> memory) const {
  if (!registered_.has_value() || memory.empty()) return false;
  const std::less_equal<const std::byte*> at_or_before;
  return at_or_before(registered_->data(), memory.data()) &&
         at_or_before(memory.data() + memory.size(), registered_->data() + registered_->size());
}

void UringBlockIo::SubmitCancel() {
  io_uring_sqe* entry = NextEntry();
  io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
  io_uring_sqe_set_data64(entry, kCancelTag);
  ++in_flight_;
}

/// Submits what is in the ring and waits for a completion. Returns 0 (also at the deadline) or an errno.
int UringBlockIo::Enter(TimePoint deadline) {
  const Duration left = deadline - std::chrono::steady_clock::now();
  const int64_t wait_ns = std::clamp<int64_t>(left.count(), 0, Duration(kMaxWait).count());
  __kernel_timespec timeout{.tv_sec = wait_ns / 1'000'000'000, .tv_nsec = wait_ns % 1'000'000'000};
  io_uring_cqe* ignored = nullptr;
  unsubmitted_bytes_ = 0;
  const int returned = io_uring_submit_and_wait_timeout(ring_.get(), &ignored, 1, &timeout, nullptr);
  return returned >= 0 || returned == -ETIME ? 0 : -returned;
}

void UringBlockIo::Reap() {
  io_uring_cqe* entry = nullptr;
  while (io_uring_peek_cqe(ring_.get(), &entry) == 0) {
    const uint64_t tag = io_uring_cqe_get_data64(entry);
    const int returned = entry->res;
    io_uring_cqe_seen(ring_.get(), entry);
    if (tag == kWakeTag) {
      watching_ = false;
      stream_->Woken();
      continue;
    }
    KVTIER_CHECK(in_flight_ > 0);
    --in_flight_;
    if (tag == kCancelTag) continue;
    const auto index = static_cast<uint32_t>(tag);
    Part& part = parts_[index];
    if (returned == -ECANCELED) {
      part.io.status = Status(Code::kDeadlineExceeded, "I/O cancelled at its deadline");
    } else if (AdvanceRequest(part.io, part.progress, returned) == IoStep::kAgain) {
      again_.push_back(index);
      continue;
    }
    EndPart(index);
  }
}

}  // namespace

Result<std::unique_ptr<BlockIo>> MakeUringBlockIo() {
  auto io = std::make_unique<UringBlockIo>();
  KVTIER_TRY(io->Open());
  return std::unique_ptr<BlockIo>(std::move(io));
}

}  // namespace kvtier
