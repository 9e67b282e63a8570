#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "kernels/kv8_sections.h"

namespace kvtier {

/// Owner of the sections of one layer, one after the other.
class Kv8Buffers {
 public:
  Kv8Buffers(Kv8Buffers&&) = default;
  Kv8Buffers(const BlockShape& s, uint8_t fill) {
    const size_t heads = s.kv_heads, rows = heads * s.tokens;
    const size_t sizes[] = {
        2 * heads * s.k_dim,          2 * heads * s.k_dim, 2 * rows,      2 * heads * s.nraw * s.k_dim,
        2 * heads * s.nraw * s.v_dim, rows * s.k_dim,      rows * s.v_dim};
    size_t total = 0;
    for (const size_t bytes : sizes) total += bytes;
    memory_.assign(total, fill);
    uint8_t** const pointers[] = {&sections_.k_scale, &sections_.k_min, &sections_.v_scale,
                                  &sections_.k_raw,   &sections_.v_raw, &sections_.k_codes,
                                  &sections_.v_codes};
    uint8_t* at = memory_.data();
    for (size_t i = 0; i < std::size(sizes); at += sizes[i++]) *pointers[i] = at;
  }

  std::vector<uint8_t>& memory() { return memory_; }
  const Kv8Sections<uint8_t>& sections() const { return sections_; }
  Kv8Sections<const uint8_t> Read() const {
    const Kv8Sections<uint8_t>& s = sections_;
    return {s.k_scale, s.k_min, s.v_scale, s.k_raw, s.v_raw, s.k_codes, s.v_codes};
  }

 private:
  std::vector<uint8_t> memory_;
  Kv8Sections<uint8_t> sections_;
};

}  // namespace kvtier
