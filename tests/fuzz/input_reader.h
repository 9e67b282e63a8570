#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier {

/// Takes a fuzzer's bytes one after the other; zeros after the last.
class InputReader {
 public:
  explicit InputReader(std::span<const std::byte> input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Next() { return Read<uint8_t>(); }
  uint16_t Next16() { return Read<uint16_t>(); }
  uint32_t Next32() { return Read<uint32_t>(); }
  uint64_t Next64() { return Read<uint64_t>(); }
  /// At most so many.
  std::span<const std::byte> Take(size_t bytes) {
    const std::span<const std::byte> taken = rest_.first(std::min(bytes, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  template <typename Int>
  Int Read() {
    Int value = 0;
    const std::span<const std::byte> bytes = Take(sizeof(value));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  std::span<const std::byte> rest_;
};

/// Writes what InputReader takes; for seeds.
class InputWriter {
 public:
  InputWriter& Put(uint8_t value) { return PutInt(value); }
  InputWriter& Put16(uint16_t value) { return PutInt(value); }
  InputWriter& Put32(uint32_t value) { return PutInt(value); }
  InputWriter& Put64(uint64_t value) { return PutInt(value); }
  InputWriter& PutBytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  InputWriter& PutText(std::string_view text) { return PutBytes(std::as_bytes(std::span(text))); }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  template <typename Int>
  InputWriter& PutInt(Int value) {
    return PutBytes(std::as_bytes(std::span(&value, 1)));
  }

  std::vector<std::byte> bytes_;
};

inline std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace kvtier
