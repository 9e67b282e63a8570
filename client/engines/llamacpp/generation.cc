#include "client/engines/llamacpp/generation.h"

#include <utility>

#include "tiers/base/check.h"

namespace kvtier::llamacpp {

void Generation::Add(const std::string& text) {
  if (text.empty()) return;
  const std::lock_guard lock(mutex_);
  KVTIER_CHECK(!end_.has_value());
  text_ += text;
  changed_.notify_one();
}

void Generation::End(GenerationEnd end) {
  const std::lock_guard lock(mutex_);
  KVTIER_CHECK(!end_.has_value());
  end_ = std::move(end);
  changed_.notify_one();
}

bool Generation::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

Generation::Chunk Generation::Take(Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return !text_.empty() || end_.has_value(); });
  return {.text = std::exchange(text_, {}), .end = end_};
}

void Generation::Cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

}  // namespace kvtier::llamacpp
