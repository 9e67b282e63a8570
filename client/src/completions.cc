#include "client/src/completions.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace kvtier::client {

Result<int> Completions::Descriptor() {
  std::lock_guard lock(mutex_);
  if (!event_.valid()) event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return Status(Code::kResourceExhausted, "no descriptor left");
  return event_.get();
}

void Completions::Add(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  if (!event_.valid()) return;
  if (ended_.size() >= limit_) ended_.pop_front();
  ended_.push_back(ticket);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

void Completions::Forget(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  std::erase(ended_, ticket);
  if (ended_.empty()) Clear();
}

size_t Completions::Take(std::span<uint64_t> out) {
  std::lock_guard lock(mutex_);
  const size_t count = std::min(out.size(), ended_.size());
  std::copy_n(ended_.begin(), count, out.begin());
  ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
  if (ended_.empty()) Clear();
  return count;
}

void Completions::Clear() {
  uint64_t count = 0;
  if (event_.valid()) {
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof(count));
  }
}

}  // namespace kvtier::client
