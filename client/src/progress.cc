#include "client/src/progress.h"

#include <utility>

namespace kvtier::client {

Progress::Progress(size_t parts, kvtier_durability durability) : durability_(durability), results_(parts) {}

void Progress::Set(size_t part, const kvtier_put_result& result) {
  std::lock_guard lock(mutex_);
  results_[part] = result;
}

void Progress::BatchStarted() {
  std::lock_guard lock(mutex_);
  ++under_way_;
}

void Progress::BatchEnded() {
  {
    std::lock_guard lock(mutex_);
    // Before a waiter can see the end, so that what it then takes back is there.
    if (--under_way_ == 0 && on_end_) std::exchange(on_end_, nullptr)();
  }
  changed_.notify_all();
}

void Progress::OnEnd(std::function<void()> ended) {
  std::lock_guard lock(mutex_);
  if (under_way_ == 0) return ended();
  on_end_ = std::move(ended);
}

bool Progress::WaitUntil(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return under_way_ == 0; });
}

std::vector<kvtier_put_result> Progress::results() const {
  std::lock_guard lock(mutex_);
  return results_;
}

}  // namespace kvtier::client
