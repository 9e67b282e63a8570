#pragma once

#include "daemon/engine/entry.h"
#include "tiers/base/status.h"

namespace kvtier {

/// Says that a device cannot be used now; an exception, a wrong size or a place in another use says nothing
/// of it.
inline bool IsDeviceFailure(Code code) {
  return code == Code::kUnavailable || code == Code::kResourceExhausted || code == Code::kDeadlineExceeded ||
         code == Code::kPermissionDenied || code == Code::kNotFound;
}

/// How long a tier that failed is left alone before one operation may probe it.
inline constexpr Duration kCircuitOpenFor = std::chrono::seconds(1);
/// One bad block is no bad device: reads stop after so many failures in a row.
inline constexpr uint32_t kReadFailuresToOpen = 4;

/// closed -> (failures in a row) open -> (time) half open: one probe -> closed or open again. While the
/// device gives no answer at all, what it owes is the probe. One that broke stays open. Threads:
/// single-owner.
class Circuit {
 public:
  explicit Circuit(uint32_t failures_to_open = 1) : failures_to_open_(failures_to_open) {}

  bool Allows(TimePoint now) const {
    return !open_ || (!broken_ && !silent_ && !probing_ && now >= retry_at_);
  }
  /// An operation starts: in the half-open state it is the probe.
  void OnStart() { probing_ = open_; }
  void OnSuccess() {
    open_ = broken_;
    probing_ = false;
    failures_ = 0;
  }
  void OnFailure(TimePoint now) {
    probing_ = false;
    if (++failures_ >= failures_to_open_) open_ = true;
    retry_at_ = now + kCircuitOpenFor;
  }
  /// A probe that ended without touching the device.
  void OnAbandon() { probing_ = false; }
  /// The device owes answers for too long.
  void OnSilence() {
    open_ = silent_ = true;
    failures_ = failures_to_open_;
  }
  /// It answered, well or not.
  void OnAnswer(TimePoint now) {
    if (!silent_) return;
    silent_ = probing_ = false;
    retry_at_ = now;
  }
  /// It never answers again.
  void Break() { open_ = broken_ = true; }
  bool open() const { return open_; }

 private:
  uint32_t failures_to_open_;
  uint32_t failures_ = 0;  ///< in a row
  bool open_ = false;
  bool probing_ = false;
  bool silent_ = false;
  bool broken_ = false;
  TimePoint retry_at_{};
};

}  // namespace kvtier
