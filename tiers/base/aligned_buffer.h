#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiers/base/status.h"

namespace kvtier {

/// Page-aligned anonymous memory that grows on demand and returns to the system when released. Move-only,
/// single-owner.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  /// From now on what fits in `lent`, page-aligned and somebody else's, is reserved there. Contents are
  /// undefined afterwards. Empty: no longer.
  void Lend(std::span<std::byte> lent) { lent_ = lent; }
  /// At least `bytes` of it; contents are undefined after growth. Errors: kResourceExhausted.
  Result<std::span<std::byte>> Reserve(uint64_t bytes);
  /// Gives memory above `bytes` back to the system.
  void ShrinkTo(uint64_t bytes);
  /// The same, but keeps what the last Reserve asked for: mapping it anew for the next one of its kind would
  /// cost more than a copy.
  void ShrinkToUse(uint64_t bytes) { ShrinkTo(bytes > used_ ? bytes : used_); }
  std::span<std::byte> span() const { return {data_, capacity_}; }

 private:
  std::span<std::byte> lent_;
  std::byte* data_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t used_ = 0;  ///< of its own, by the last Reserve
};

}  // namespace kvtier
