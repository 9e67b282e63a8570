#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>

#include "tiers/base/status.h"
#include "tiers/base/unique_fd.h"

namespace kvtier::client {

/// Tickets that have ended and of which nobody was told yet, and an eventfd that is readable while there are
/// any. Threads: any. Bounded: the oldest is forgotten first.
class Completions {
 public:
  explicit Completions(size_t limit) : limit_(limit) {}

  /// The descriptor, which stays this object's. Tickets that ended before the first call are not told.
  /// Errors: kResourceExhausted when the process has none left.
  Result<int> Descriptor();
  void Add(uint64_t ticket);
  /// Somebody waited for the ticket: there is nothing left to tell.
  void Forget(uint64_t ticket);
  /// Oldest first; how many.
  size_t Take(std::span<uint64_t> out);

 private:
  void Clear();

  const size_t limit_;
  std::mutex mutex_;
  UniqueFd event_;
  std::deque<uint64_t> ended_;
};

}  // namespace kvtier::client
