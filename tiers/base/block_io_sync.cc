#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tiers/base/block_io_impl.h"

namespace kvtier {
namespace {

int64_t CallOnce(const IoRequest& request, const IoProgress& progress) {
  std::byte* memory = request.memory.data() + progress.done_bytes;
  const size_t bytes = std::min<uint64_t>(request.memory.size() - progress.done_bytes, kMaxIoCallBytes);
  const auto offset = static_cast<off_t>(request.offset + progress.done_bytes);
  ssize_t returned = 0;
  switch (request.op) {
    case IoRequest::Op::kRead:
      returned = ::pread(request.fd, memory, bytes, offset);
      break;
    case IoRequest::Op::kWrite:
      returned = ::pwrite(request.fd, memory, bytes, offset);
      break;
    case IoRequest::Op::kDataSync:
      returned = ::fdatasync(request.fd);
      break;
  }
  return returned < 0 ? -errno : returned;
}

/// One system call after another. A call in progress cannot be cancelled: the deadline is checked between
/// calls.
class SyncBlockIo final : public BlockIo {
 public:
  Status RunBatch(std::span<IoRequest> requests, TimePoint deadline) override {
    Status first;
    for (IoRequest& request : requests) {
      RunOne(request, deadline);
      if (first.ok() && !request.status.ok()) first = request.status;
    }
    return first;
  }
  const char* name() const override { return "sync"; }

 private:
  static void RunOne(IoRequest& request, TimePoint deadline) {
    IoProgress progress;
    do {
      if (std::chrono::steady_clock::now() >= deadline) {
        request.status = Status(Code::kDeadlineExceeded, "I/O not finished in time");
        return;
      }
    } while (AdvanceRequest(request, progress, CallOnce(request, progress)) == IoStep::kAgain);
  }
};

}  // namespace

std::unique_ptr<BlockIo> MakeSyncBlockIo() {
  return std::make_unique<SyncBlockIo>();
}

}  // namespace kvtier
