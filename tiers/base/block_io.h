#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tiers/base/clock.h"
#include "tiers/base/status.h"

namespace kvtier {

/// One operation on an open file. `memory` stays owned by the BlockIo from RunBatch's start to its end.
struct IoRequest {
  enum class Op : uint8_t { kRead, kWrite, kDataSync };
  Op op = Op::kRead;
  int fd = -1;
  uint64_t offset = 0;
  std::span<std::byte> memory;  ///< read into, written from; empty for kDataSync
  Status
      status;  ///< out: OK only when all bytes were moved (a short read or write is retried, then an error)
};

/// Batched file I/O: submit all, wait for all. Requests of one batch run in any order.
/// Threads: single-owner (one per transfer worker or committer).
/// Errors: per request; RunBatch returns the first of them. Every request always gets its status.
class BlockIo {
 public:
  virtual ~BlockIo() = default;
  /// At `deadline` the outstanding requests are cancelled and waited for, and report kDeadlineExceeded.
  virtual Status RunBatch(std::span<IoRequest> requests, TimePoint deadline) = 0;
  virtual const char* name() const = 0;  ///< "io_uring" or "sync"
};

inline constexpr uint32_t kMaxIoInFlight = 64;

enum class BlockIoKind : uint8_t { kAuto, kUring, kSync };

/// kAuto probes with a real ring and a real read, and falls back to synchronous calls. Call it on the thread
/// that will use it (SINGLE_ISSUER). Errors: only for kUring, when it does not work here.
Result<std::unique_ptr<BlockIo>> MakeBlockIo(BlockIoKind kind);

}  // namespace kvtier
