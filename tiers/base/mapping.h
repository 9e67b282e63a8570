#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiers/base/status.h"

namespace kvtier {

enum class MapAccess : uint8_t { kReadOnly, kReadWrite };

/// Owns one shared mapping of a file from its start. Move-only, single-owner; the memory itself may be used
/// from any thread.
class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory();

  /// Maps the first `bytes` of `fd` MAP_SHARED; the descriptor may be closed afterwards. The caller knows
  /// that the file holds so much and cannot shrink (see CheckSealed), else touching it raises SIGBUS. Errors:
  /// kResourceExhausted, kPermissionDenied (for example: writable, but sealed), kInvalidArgument (no bytes).
  static Result<MappedMemory> MapShared(int fd, uint64_t bytes, MapAccess access);

  /// Backs every page now, so that later writes neither fault nor find the system out of memory.
  /// Errors: kResourceExhausted.
  Status Prefault();
  void Reset();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  MappedMemory(std::byte* data, uint64_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace kvtier
