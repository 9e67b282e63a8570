#pragma once

#include <chrono>

namespace kvtier {

using Duration = std::chrono::nanoseconds;
/// A moment on the monotonic clock (CLOCK_MONOTONIC; the same in all processes of one machine).
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// Time as a dependency: whatever waits or expires takes one of these, tests pass their own.
/// Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace kvtier
