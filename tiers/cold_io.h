#pragma once

#include <chrono>
#include <span>

#include "tiers/base/block_io.h"

namespace kvtier {

/// One read, write or sync of a cold tier's device may take this long; in a stream of requests half of it at
/// least.
inline constexpr Duration kColdIoTimeout = std::chrono::seconds(5);

inline IoRequest ReadRequest(int fd, uint64_t offset, std::span<std::byte> memory) {
  return {.op = IoRequest::Op::kRead, .fd = fd, .offset = offset, .memory = memory, .status = {}};
}
inline IoRequest WriteRequest(int fd, uint64_t offset, std::span<std::byte> memory) {
  return {.op = IoRequest::Op::kWrite, .fd = fd, .offset = offset, .memory = memory, .status = {}};
}
inline IoRequest SyncRequest(int fd) {
  return {.op = IoRequest::Op::kDataSync, .fd = fd, .offset = 0, .memory = {}, .status = {}};
}

inline Status RunWithTimeout(BlockIo& io, std::span<IoRequest> requests) {
  return io.RunBatch(requests, SteadyClock{}.Now() + kColdIoTimeout);
}
inline Status RunWithTimeout(BlockIo& io, IoRequest request) {
  return RunWithTimeout(io, {&request, 1});
}

}  // namespace kvtier
