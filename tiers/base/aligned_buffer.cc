#include "tiers/base/aligned_buffer.h"

#include <sys/mman.h>

#include <string>
#include <utility>

namespace kvtier {
namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t WholePages(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : lent_(std::exchange(other.lent_, {})),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)),
      used_(std::exchange(other.used_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    ShrinkTo(0);
    lent_ = std::exchange(other.lent_, {});
    data_ = std::exchange(other.data_, nullptr);
    capacity_ = std::exchange(other.capacity_, 0);
    used_ = std::exchange(other.used_, 0);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  ShrinkTo(0);
}

Result<std::span<std::byte>> AlignedBuffer::Reserve(uint64_t bytes) {
  used_ = bytes <= lent_.size() ? 0 : bytes;
  if (bytes <= lent_.size()) return lent_.first(bytes);
  if (bytes > capacity_) {
    ShrinkTo(0);
    const uint64_t whole = WholePages(bytes);
    if (whole < bytes) return Status(Code::kResourceExhausted, "buffer size overflows");
    void* memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return Status(Code::kResourceExhausted,
                    "no memory for a buffer of " + std::to_string(bytes) + " bytes");
    }
    data_ = static_cast<std::byte*>(memory);
    capacity_ = whole;
  }
  return std::span<std::byte>(data_, bytes);
}

void AlignedBuffer::ShrinkTo(uint64_t bytes) {
  if (bytes >= capacity_) return;
  const uint64_t kept = WholePages(bytes);
  if (kept == capacity_) return;
  KVTIER_CHECK(::munmap(data_ + kept, capacity_ - kept) == 0);
  capacity_ = kept;
  if (kept == 0) data_ = nullptr;
}

}  // namespace kvtier
