#pragma once

#include "daemon/engine/entry.h"

namespace kvtier {

/// How long a tier that failed a write sheds all writes before one may probe it.
inline constexpr Duration kCircuitOpenFor = std::chrono::seconds(1);

/// closed -> (failure) open -> (time) half open: one probe -> closed or open again. Threads: single-owner.
class Circuit {
 public:
  bool AllowsWrite(TimePoint now) const { return !open_ || (now >= retry_at_ && !probing_); }
  /// A write starts: in the half-open state it is the probe.
  void OnStart() { probing_ = open_; }
  void OnSuccess() { open_ = probing_ = false; }
  void OnFailure(TimePoint now) {
    open_ = true;
    probing_ = false;
    retry_at_ = now + kCircuitOpenFor;
  }
  /// A probe that ended without touching the device.
  void OnAbandon() { probing_ = false; }
  bool open() const { return open_; }
  TimePoint retry_at() const { return retry_at_; }

 private:
  bool open_ = false;
  bool probing_ = false;
  TimePoint retry_at_{};
};

}  // namespace kvtier
