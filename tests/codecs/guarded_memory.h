#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "tiers/base/check.h"

namespace kvtier {

/// Which end of the memory touches its guard page exactly.
enum class GuardedEnd { kFront, kBack };

/// Memory between two pages that nobody may touch: one byte too far and the test dies. Move-only owner.
class GuardedMemory {
 public:
  GuardedMemory(size_t bytes, GuardedEnd end) : bytes_(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inner = (bytes + page - 1) / page * page;
    mapped_bytes_ = inner + 2 * page;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVTIER_CHECK(mapped != MAP_FAILED);
    mapped_ = static_cast<std::byte*>(mapped);
    KVTIER_CHECK(inner == 0 || mprotect(mapped_ + page, inner, PROT_READ | PROT_WRITE) == 0);
    data_ = mapped_ + page + (end == GuardedEnd::kBack ? inner - bytes : 0);
  }
  GuardedMemory(std::span<const std::byte> content, GuardedEnd end) : GuardedMemory(content.size(), end) {
    if (!content.empty()) memcpy(data_, content.data(), content.size());
  }
  GuardedMemory(GuardedMemory&& other) noexcept
      : bytes_(other.bytes_), mapped_bytes_(other.mapped_bytes_), mapped_(other.mapped_), data_(other.data_) {
    other.mapped_ = nullptr;
  }
  GuardedMemory& operator=(GuardedMemory&&) = delete;
  ~GuardedMemory() {
    if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  }

  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  size_t bytes_;
  size_t mapped_bytes_ = 0;
  std::byte* mapped_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace kvtier
