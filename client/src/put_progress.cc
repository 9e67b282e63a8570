#include "client/src/put_progress.h"

namespace kvtier::client {

PutProgress::PutProgress(size_t blocks, kvtier_durability durability)
    : durability_(durability), results_(blocks) {}

void PutProgress::Set(size_t block, const kvtier_put_result& result) {
  std::lock_guard lock(mutex_);
  results_[block] = result;
}

void PutProgress::BatchStarted() {
  std::lock_guard lock(mutex_);
  ++under_way_;
}

void PutProgress::BatchEnded() {
  {
    std::lock_guard lock(mutex_);
    --under_way_;
  }
  ended_.notify_all();
}

bool PutProgress::WaitUntil(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  return ended_.wait_until(lock, deadline, [this] { return under_way_ == 0; });
}

std::vector<kvtier_put_result> PutProgress::results() const {
  std::lock_guard lock(mutex_);
  return results_;
}

}  // namespace kvtier::client
