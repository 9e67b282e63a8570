#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <set>

#include "daemon/engine/entry.h"

namespace kvtier {

enum class TimerKind : uint8_t {
  kLease,
  kTransfer,
  kAcquire,
  kPut,
  kTicketWait,
  kExpiry,
  kCircuit,
  kReclaim,
  kScrub
};

/// `a` and `b` name what is due, by kind.
struct Timer {
  TimePoint when;
  TimerKind kind;
  uint64_t a = 0;
  uint64_t b = 0;
  friend auto operator<=>(const Timer&, const Timer&) = default;
};

/// What is due when. Threads: single-owner; time comes from the caller.
class TimerQueue {
 public:
  void Add(const Timer& timer) { timers_.insert(timer); }
  void Cancel(const Timer& timer) { timers_.erase(timer); }
  std::optional<Timer> PopDue(TimePoint now) {
    if (timers_.empty() || timers_.begin()->when > now) return std::nullopt;
    return timers_.extract(timers_.begin()).value();
  }
  TimePoint next() const { return timers_.empty() ? kNever : timers_.begin()->when; }

 private:
  std::set<Timer> timers_;
};

}  // namespace kvtier
