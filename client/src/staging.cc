#include "client/src/staging.h"

#include <utility>

#include "tiers/place.h"

namespace kvtier::client {
namespace {

constexpr uint64_t kStagingAlign = 64;

}  // namespace

StagingPool::StagingPool(MappedMemory memory, uint64_t window_bytes)
    : memory_(std::move(memory)), window_bytes_(window_bytes) {}

std::optional<uint64_t> StagingPool::FirstFit(uint64_t bytes) const {
  if (used_bytes_ > 0 && used_bytes_ + bytes > window_bytes_) return std::nullopt;
  uint64_t at = 0;
  for (const auto& [offset, length] : used_) {
    if (offset - at >= bytes) return at;
    at = offset + length;
  }
  if (memory_.size() - at >= bytes) return at;
  return std::nullopt;
}

std::optional<uint64_t> StagingPool::Allocate(uint64_t bytes, TimePoint deadline) {
  bytes = AlignUp(bytes, kStagingAlign);
  if (bytes == 0 || bytes > memory_.size()) return std::nullopt;
  std::unique_lock lock(mutex_);
  std::optional<uint64_t> offset;
  freed_.wait_until(lock, deadline, [&] { return closed_ || (offset = FirstFit(bytes)).has_value(); });
  if (closed_ || !offset.has_value()) return std::nullopt;
  used_.emplace(*offset, bytes);
  used_bytes_ += bytes;
  return offset;
}

void StagingPool::Free(uint64_t offset) {
  {
    std::lock_guard lock(mutex_);
    const auto it = used_.find(offset);
    if (it == used_.end()) return;
    used_bytes_ -= it->second;
    used_.erase(it);
  }
  freed_.notify_all();
}

bool StagingPool::HasRoom(uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  return FirstFit(AlignUp(bytes, kStagingAlign)).has_value();
}

uint64_t StagingPool::used_bytes() const {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}

void StagingPool::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  freed_.notify_all();
}

}  // namespace kvtier::client
