#pragma once

#include <algorithm>

#include "tiers/base/clock.h"

namespace kvtier::llamacpp {

/// Keeps an engine from waiting for a daemon that does not answer: after a failure nothing is asked for a
/// while, twice as long after each further one. Single-owner.
class Breaker {
 public:
  static constexpr Duration kPauseMin = std::chrono::milliseconds(250);
  static constexpr Duration kPauseMax = std::chrono::seconds(5);

  bool Allows(TimePoint now) const { return now >= open_until_; }
  void Succeeded() {
    pause_ = kPauseMin;
    open_until_ = TimePoint::min();
  }
  void Failed(TimePoint now) {
    open_until_ = now + pause_;
    pause_ = std::min(2 * pause_, kPauseMax);
  }

 private:
  TimePoint open_until_ = TimePoint::min();
  Duration pause_ = kPauseMin;
};

}  // namespace kvtier::llamacpp
