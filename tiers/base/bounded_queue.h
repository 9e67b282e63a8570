#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tiers/base/check.h"
#include "tiers/base/clock.h"
#include "tiers/base/doorbell.h"

namespace kvtier {

/// Urgent elements taken in a row while others wait: then it is the turn of one of those.
inline constexpr uint32_t kMaxUrgentInARow = 8;

/// A queue with a named bound, many producers, many consumers. Full means refused; it never grows past the
/// bound. Urgent elements overtake the others, which still get their turns. Threads: any. The mutex is held
/// for moves of elements only, never across I/O or callbacks.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { KVTIER_CHECK(capacity > 0); }

  /// False when full or closed; `value` is then untouched.
  [[nodiscard]] bool TryPush(T&& value) { return Push(items_, std::move(value)); }
  /// The same, ahead of all that is not urgent.
  [[nodiscard]] bool TryPushUrgent(T&& value) { return Push(urgent_, std::move(value)); }

  /// TryPush for a producer that sees to the element itself: wakes nobody.
  [[nodiscard]] bool TryPushQuietly(T&& value) {
    std::lock_guard lock(mutex_);
    if (closed_ || SizeLocked() >= capacity_) return false;
    items_.push_back(std::move(value));
    return true;
  }

  std::optional<T> TryPop() {
    std::lock_guard lock(mutex_);
    return PopLocked();
  }

  /// Waits until there is an element, the queue is closed, Wake() was called, or `deadline`.
  std::optional<T> PopUntil(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    ++waiters_;
    ready_.wait_until(lock, deadline, [&] { return SizeLocked() > 0 || closed_ || woken_; });
    --waiters_;
    woken_ = false;
    return PopLocked();
  }

  /// Waits like PopUntil, but takes nothing.
  void WaitUntil(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    ++waiters_;
    ready_.wait_until(lock, deadline, [&] { return SizeLocked() > 0 || closed_ || woken_; });
    --waiters_;
    woken_ = false;
  }

  /// For a consumer that is about to wait for something else: `bell` is rung once, for the next element that
  /// those who wait here do not take: each takes one. False when there is an element already.
  [[nodiscard]] bool RingFor(const std::shared_ptr<const Doorbell>& bell) {
    std::lock_guard lock(mutex_);
    if (SizeLocked() > 0) return false;
    if (std::find(bells_.begin(), bells_.end(), bell) == bells_.end()) bells_.push_back(bell);
    return true;
  }
  /// Not any more. It may have been rung meanwhile.
  void StopRingingFor(const std::shared_ptr<const Doorbell>& bell) {
    std::lock_guard lock(mutex_);
    std::erase(bells_, bell);
  }

  /// Makes a waiting PopUntil or WaitUntil return: something else wants the consumer's attention.
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_all();
  }

  /// No more pushes; what is inside can still be popped.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return SizeLocked();
  }
  size_t capacity() const { return capacity_; }

 private:
  bool Push(std::deque<T>& lane, T&& value) {
    bool wake = false;
    std::shared_ptr<const Doorbell> bell;
    {
      std::lock_guard lock(mutex_);
      if (closed_ || SizeLocked() >= capacity_) return false;
      lane.push_back(std::move(value));
      wake = waiters_ > 0;
      if (SizeLocked() > waiters_ && !bells_.empty()) {
        bell = std::move(bells_.back());
        bells_.pop_back();
      }
    }
    if (wake) ready_.notify_one();
    if (bell) bell->Ring();
    return true;
  }

  size_t SizeLocked() const { return items_.size() + urgent_.size(); }

  std::optional<T> PopLocked() {
    std::optional<T> value;
    const bool others_turn = urgent_.empty() || (urgent_in_a_row_ >= kMaxUrgentInARow && !items_.empty());
    std::deque<T>& lane = others_turn ? items_ : urgent_;
    urgent_in_a_row_ = others_turn ? 0 : urgent_in_a_row_ + 1;
    if (!lane.empty()) {
      value.emplace(std::move(lane.front()));
      lane.pop_front();
    }
    return value;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_, urgent_;
  std::vector<std::shared_ptr<const Doorbell>> bells_;  ///< one of each consumer at most
  uint32_t urgent_in_a_row_ = 0;
  size_t waiters_ = 0;  ///< until they run, be they notified or not
  bool closed_ = false;
  bool woken_ = false;
};

}  // namespace kvtier
