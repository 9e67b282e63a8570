#pragma once

#include <cstdint>
#include <span>

#include "tiers/base/aligned_buffer.h"

namespace kvtier {

/// Memory of one size that stays where it is, so that a BlockIo can register it with the kernel, lent out in
/// runs of chunks. Threads: single-owner.
class IoMemory {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{64} << 10;
  static constexpr uint64_t kChunks = 64;
  static constexpr uint64_t kBytes = kChunks * kChunkBytes;

  /// All of it, mapped at the first call. Empty where the system has no memory; then nothing is lent either.
  std::span<std::byte> all();
  /// At least `bytes`, page-aligned, until they are given back. Empty: no run is free, or is so long.
  std::span<std::byte> Take(uint64_t bytes);
  /// What Take returned; nothing if that is empty.
  void Give(std::span<std::byte> taken);

 private:
  AlignedBuffer memory_;
  uint64_t taken_ = 0;  ///< a bit a chunk
};

}  // namespace kvtier
