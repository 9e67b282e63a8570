#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "tiers/base/status.h"

namespace kvtier {

/// Keeps the process alive when mapped device memory gives SIGBUS: poisoned memory, a file that was cut, a
/// disk that is full. The pages are replaced by zeros, which no checksum takes for data, and lost() says so
/// from then on. Owns one entry of a process-wide table that the signal handler reads; a handler has no other
/// way to know. A fault outside of watched memory goes to the handler that was there before, else ends the
/// process. Threads: Watch and the destructor any, one at a time for each guard; lost() any. Move-only.
class FaultGuard {
 public:
  /// Guards at once in a process.
  static constexpr size_t kMaxGuards = 64;

  FaultGuard() = default;
  FaultGuard(FaultGuard&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  FaultGuard& operator=(FaultGuard&& other) noexcept;
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
  ~FaultGuard() { Reset(); }

  /// Watches a mapping of whole pages of `page_bytes` (what the mapping can be split by), until the guard
  /// goes: it must go before the mapping does. Errors: kResourceExhausted (too many guards), kUnavailable.
  static Result<FaultGuard> Watch(std::span<std::byte> memory, uint64_t page_bytes);

  /// Whether any page was replaced: what was written there is gone, and what is written may go nowhere.
  bool lost() const;
  void Reset();

 private:
  struct Slot;
  explicit FaultGuard(Slot* slot) : slot_(slot) {}

  Slot* slot_ = nullptr;
  friend struct FaultTable;
};

}  // namespace kvtier
