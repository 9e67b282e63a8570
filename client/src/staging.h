#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "tiers/base/clock.h"
#include "tiers/base/mapping.h"

namespace kvtier::client {

/// Hands out stretches of the staging memory, lowest addresses first, so that a busy client keeps writing to
/// the same cache-warm pages. Threads: any.
class StagingPool {
 public:
  /// What is in use stays within `window_bytes` (one larger stretch may have the pool to itself).
  StagingPool(MappedMemory memory, uint64_t window_bytes);

  /// Offset of `bytes` free bytes, 64-byte aligned. Waits until `deadline`. Nullopt: never fits, no room in
  /// time, closed.
  std::optional<uint64_t> Allocate(uint64_t bytes, TimePoint deadline);
  void Free(uint64_t offset);
  /// Whether Allocate would answer at once.
  bool HasRoom(uint64_t bytes) const;
  std::span<std::byte> At(uint64_t offset, uint64_t bytes) const {
    return memory_.span().subspan(offset, bytes);
  }
  uint64_t capacity_bytes() const { return memory_.size(); }
  uint64_t used_bytes() const;
  /// Nobody waits any more and nothing is handed out.
  void Close();

 private:
  std::optional<uint64_t> FirstFit(uint64_t bytes) const;

  const MappedMemory memory_;
  const uint64_t window_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::map<uint64_t, uint64_t> used_;  ///< offset to bytes
  uint64_t used_bytes_ = 0;
  bool closed_ = false;
};

}  // namespace kvtier::client
