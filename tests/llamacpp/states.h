#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "client/engines/llamacpp/seq_state.h"

namespace kvtier::llamacpp {

/// The bytes of a state, written here by hand from the format's description, field by field.
class StateWriter {
 public:
  template <typename T>
  StateWriter& Put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  StateWriter& Rows(uint64_t bytes, std::mt19937& random) {
    for (uint64_t i = 0; i < bytes; ++i) bytes_.push_back(static_cast<std::byte>(random() % 256));
    return *this;
  }
  std::vector<std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// A state of cells at these positions, with rows of random bytes.
inline std::vector<std::byte> StateOf(SeqShape shape, const std::vector<int32_t>& positions, uint32_t seed,
                                      int32_t sequence = 3) {
  std::mt19937 random(seed);
  StateWriter out;
  out.Put<uint32_t>(0xaf143cd8).Put<int32_t>(sequence).Put<uint32_t>(1);
  out.Put<uint32_t>(static_cast<uint32_t>(positions.size()));
  if (positions.empty()) return out.bytes();
  for (const int32_t position : positions) out.Put<int32_t>(position).Put<uint32_t>(1).Put<int32_t>(sequence);
  out.Put<uint32_t>(0).Put<uint32_t>(shape.layers);
  for (uint32_t plane = 0; plane < 2 * shape.layers; ++plane) {
    out.Put<int32_t>(1).Put<uint64_t>(shape.row_bytes).Rows(positions.size() * shape.row_bytes, random);
  }
  return out.bytes();
}

}  // namespace kvtier::llamacpp
