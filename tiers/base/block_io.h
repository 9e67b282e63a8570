#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tiers/base/clock.h"
#include "tiers/base/status.h"

namespace kvtier {

/// One operation on an open file. `memory` is the BlockIo's while the request is under way.
struct IoRequest {
  enum class Op : uint8_t { kRead, kWrite, kDataSync };
  Op op = Op::kRead;
  int fd = -1;
  uint64_t offset = 0;
  std::span<std::byte> memory;  ///< read into, written from; empty for kDataSync
  Status
      status;  ///< out: OK only when all bytes were moved (a short read or write is retried, then an error)
  uint64_t tag = 0;  ///< the caller's own
};

/// Where the requests of a stream come from and go to. Must not throw, nor use the BlockIo that runs it.
class IoStream {
 public:
  virtual ~IoStream() = default;
  /// The next request, which stays where it is until it is done; null: none for now. Asked again after each
  /// Done.
  virtual IoRequest* Next() = 0;
  /// `request` has its status.
  virtual void Done(IoRequest& request) = 0;
  /// Called when all that is known to have ended is done.
  virtual void AllDone() {}
  /// A descriptor that can be read from once Next, after it gave none, may give one before any is done: the
  /// wait for the device ends then. -1: there is none. Asked once, at the start.
  virtual int WakeDescriptor() const { return -1; }
  /// It could be read from.
  virtual void Woken() {}
};

/// File I/O with many requests at once, in any order.
/// Threads: single-owner (one per transfer worker or committer).
/// Errors: per request; RunBatch returns the first of them. Every request always gets its status.
class BlockIo {
 public:
  virtual ~BlockIo() = default;
  /// Submits all and waits for all. At `deadline` the outstanding requests are cancelled and waited for, and
  /// report kDeadlineExceeded.
  virtual Status RunBatch(std::span<IoRequest> requests, TimePoint deadline) = 0;
  /// Keeps up to kMaxIoInFlight requests of the stream under way, until none is and it gives none. From
  /// `deadline` on requests report kDeadlineExceeded, as above. Unless the kind can do better: one by one.
  virtual void RunStream(IoStream& stream, TimePoint deadline);
  /// Requests whose memory lies in `memory`, which stays mapped while this is used, cost less from now on,
  /// where the kind and the system can do that. The first call counts.
  virtual void RegisterMemory(std::span<std::byte> memory) { static_cast<void>(memory); }
  virtual const char* name() const = 0;  ///< "io_uring" or "sync"
  /// Otherwise every request fails: make another.
  virtual bool usable() const { return true; }
};

inline constexpr uint32_t kMaxIoInFlight = 64;

enum class BlockIoKind : uint8_t { kAuto, kUring, kSync };

/// kAuto probes with a real ring and a real read, and falls back to synchronous calls. Call it on the thread
/// that will use it (SINGLE_ISSUER). Errors: only for kUring, when it does not work here.
Result<std::unique_ptr<BlockIo>> MakeBlockIo(BlockIoKind kind);

}  // namespace kvtier
