#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tiers/base/check.h"
#include "tiers/base/clock.h"

namespace kvtier {

/// A queue with a named bound, many producers, many consumers. Full means refused; it never grows past the
/// bound. Threads: any. The mutex is held for moves of elements only, never across I/O or callbacks.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { KVTIER_CHECK(capacity > 0); }

  /// False when full or closed; `value` is then untouched.
  [[nodiscard]] bool TryPush(T&& value) {
    bool wake = false;
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
      wake = waiters_ > 0;
    }
    if (wake) ready_.notify_one();
    return true;
  }

  /// TryPush for a producer that sees to the element itself: wakes nobody.
  [[nodiscard]] bool TryPushQuietly(T&& value) {
    std::lock_guard lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
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
    ready_.wait_until(lock, deadline, [&] { return !items_.empty() || closed_ || woken_; });
    --waiters_;
    woken_ = false;
    return PopLocked();
  }

  /// Waits like PopUntil, but takes nothing.
  void WaitUntil(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    ++waiters_;
    ready_.wait_until(lock, deadline, [&] { return !items_.empty() || closed_ || woken_; });
    --waiters_;
    woken_ = false;
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
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  std::optional<T> PopLocked() {
    std::optional<T> value;
    if (!items_.empty()) {
      value.emplace(std::move(items_.front()));
      items_.pop_front();
    }
    return value;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  int waiters_ = 0;
  bool closed_ = false;
  bool woken_ = false;
};

}  // namespace kvtier
