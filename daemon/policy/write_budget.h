#pragma once

#include <algorithm>
#include <cstdint>

#include "tiers/base/clock.h"

namespace kvtier {

/// Bytes a day that may be written to a device that wears: a bucket that fills evenly and holds an hour's
/// share. It starts with a minute's: a start, or one after another, gives no hour anew. Threads:
/// single-owner. No clock of its own; time that goes backwards adds nothing.
class WriteBudget {
 public:
  /// 0: unlimited.
  explicit WriteBudget(uint64_t bytes_per_day)
      : bytes_per_day_(bytes_per_day), left_(static_cast<double>(Burst()) / 60) {}

  bool limited() const { return bytes_per_day_ != 0; }
  /// Whether `bytes` may be written now. What is written is told by Spend, allowed or not.
  bool Allows(uint64_t bytes, TimePoint now) {
    Fill(now);
    return !limited() || left_ >= static_cast<double>(std::min(bytes, Burst()));
  }
  /// Writes that are not asked for here (a durable put, what keeps the store in order) count too: the bucket
  /// goes below zero and others wait until that is made up for.
  void Spend(uint64_t bytes) {
    if (limited()) left_ -= static_cast<double>(bytes);
  }
  /// What could be written at once; 0 while it is overdrawn.
  uint64_t left_bytes() const { return left_ > 0 ? static_cast<uint64_t>(left_) : 0; }

 private:
  uint64_t Burst() const { return std::max<uint64_t>(bytes_per_day_ / 24, 1); }

  void Fill(TimePoint now) {
    if (last_ != TimePoint{} && now > last_) {
      const double days = std::chrono::duration<double>(now - last_).count() / 86400;
      left_ = std::min(left_ + days * static_cast<double>(bytes_per_day_), static_cast<double>(Burst()));
    }
    last_ = std::max(last_, now);
  }

  uint64_t bytes_per_day_;
  double left_;
  TimePoint last_{};
};

}  // namespace kvtier
