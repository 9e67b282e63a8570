#pragma once

#include <atomic>

#include "tiers/base/clock.h"

namespace kvtier {

/// A clock that moves when told to. Threads: any.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_ns_.load())); }
  void Advance(Duration by) { now_ns_.fetch_add(by.count()); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

}  // namespace kvtier
