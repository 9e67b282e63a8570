#include "tiers/base/block_io.h"

#include <cerrno>
#include <chrono>
#include <cstring>

#include "tiers/base/aligned_buffer.h"
#include "tiers/base/block_io_impl.h"
#include "tiers/base/memfd.h"

namespace kvtier {
namespace {

constexpr uint64_t kProbeBytes = 4096;
constexpr std::chrono::seconds kProbeTimeout{2};

/// Writes a page and reads it back: set-up alone can succeed where a sandbox then refuses the I/O.
Status Probe(BlockIo& io) {
  KVTIER_ASSIGN(const UniqueFd file, MakeMemoryFile("kvtier-probe", kProbeBytes));
  AlignedBuffer written, read;
  KVTIER_ASSIGN(const std::span<std::byte> source, written.Reserve(kProbeBytes));
  KVTIER_ASSIGN(const std::span<std::byte> target, read.Reserve(kProbeBytes));
  std::memset(source.data(), 0xA5, source.size());
  const TimePoint deadline = SteadyClock().Now() + kProbeTimeout;
  IoRequest request{
      .op = IoRequest::Op::kWrite, .fd = file.get(), .offset = 0, .memory = source, .status = {}};
  KVTIER_TRY(io.RunBatch({&request, 1}, deadline));
  request = {.op = IoRequest::Op::kRead, .fd = file.get(), .offset = 0, .memory = target, .status = {}};
  KVTIER_TRY(io.RunBatch({&request, 1}, deadline));
  if (std::memcmp(source.data(), target.data(), kProbeBytes) != 0) {
    return Status(Code::kUnavailable, "io_uring read back other bytes than it wrote");
  }
  return Status::Ok();
}

Result<std::unique_ptr<BlockIo>> MakeProbedUring() {
  KVTIER_ASSIGN(std::unique_ptr<BlockIo> io, MakeUringBlockIo());
  KVTIER_TRY(Probe(*io));
  return io;
}

}  // namespace

void BlockIo::RunStream(IoStream& stream, TimePoint deadline) {
  while (IoRequest* request = stream.Next()) {
    RunBatch({request, 1}, deadline).IgnoreBecause("the request carries it");
    stream.Done(*request);
  }
}

IoStep AdvanceRequest(IoRequest& request, IoProgress& progress, int64_t returned) {
  if (returned == -EINTR || returned == -EAGAIN) {
    if (++progress.retries <= kMaxIoRetries) return IoStep::kAgain;
    request.status = Status(Code::kUnavailable, "I/O interrupted too often");
    return IoStep::kFinished;
  }
  // Going on after a short direct read lands on an unaligned offset: the file ended there.
  const bool short_direct_read =
      request.op == IoRequest::Op::kRead && returned == -EINVAL && progress.done_bytes > 0;
  if (returned < 0 && !short_direct_read) {
    static constexpr const char* kNames[] = {"read", "write", "data sync"};
    request.status = StatusFromErrno(static_cast<int>(-returned), kNames[static_cast<int>(request.op)]);
    return IoStep::kFinished;
  }
  if (request.op == IoRequest::Op::kDataSync || request.memory.empty()) {
    request.status = Status::Ok();
    return IoStep::kFinished;
  }
  if (returned <= 0) {
    request.status = request.op == IoRequest::Op::kRead
                         ? Status(Code::kDataLoss, "the file ends at byte " +
                                                       std::to_string(request.offset + progress.done_bytes))
                         : Status(Code::kUnavailable, "write moved no bytes");
    return IoStep::kFinished;
  }
  progress.done_bytes += static_cast<uint64_t>(returned);
  progress.retries = 0;
  KVTIER_CHECK(progress.done_bytes <= request.memory.size());
  if (progress.done_bytes < request.memory.size()) return IoStep::kAgain;
  request.status = Status::Ok();
  return IoStep::kFinished;
}

Result<std::unique_ptr<BlockIo>> MakeBlockIo(BlockIoKind kind) {
  if (kind == BlockIoKind::kSync) return MakeSyncBlockIo();
  Result<std::unique_ptr<BlockIo>> uring = MakeProbedUring();
  if (uring.ok() || kind == BlockIoKind::kUring) return uring;
  return MakeSyncBlockIo();
}

}  // namespace kvtier
