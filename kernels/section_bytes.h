#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/plane_sections.h"

// Bytes of the numbered sections of codecs/FORMAT.md.

namespace kvtier {

/// Where sections and layer parts begin in an image.
inline constexpr uint64_t kSectionAlign = 64;

KVTIER_HD constexpr uint64_t AlignSection(uint64_t bytes) {
  return (bytes + kSectionAlign - 1) / kSectionAlign * kSectionAlign;
}

/// Bytes of each section, without padding.
struct SectionBytes {
  uint64_t k_ranges;  ///< 1: scales, then minima
  uint64_t v_scales;  ///< 2
  uint64_t raw_rows;  ///< 3
  uint64_t k_high;    ///< 4
  uint64_t v_high;    ///< 5
  uint64_t boost;     ///< 6: ids, then low bits
  uint64_t k_low;     ///< 7
  uint64_t v_low;     ///< 8
};

KVTIER_HD constexpr SectionBytes SectionBytesOf(const BlockShape& s) {
  const uint64_t heads = s.kv_heads;
  const uint64_t rows = heads * PaddedTokens(s);
  return {.k_ranges = 4 * heads * s.k_dim,
          .v_scales = rows * VGroups(s),
          .raw_rows = 2 * heads * s.nraw * (uint64_t{s.k_dim} + s.v_dim),
          .k_high = rows * (s.k_dim / 4),
          .v_high = rows * (s.v_dim / 4),
          .boost = heads * s.nb + rows * (s.nb / 4),
          .k_low = rows * (s.k_dim / 4),
          .v_low = rows * (s.v_dim / 4)};
}

/// Bytes of each section of kv8, without padding, in order.
struct Kv8SectionBytes {
  uint64_t k_ranges;  ///< scales, then minima
  uint64_t v_scales;
  uint64_t raw_rows;
  uint64_t k_codes;
  uint64_t v_codes;
};

KVTIER_HD constexpr Kv8SectionBytes Kv8SectionBytesOf(const BlockShape& s) {
  const uint64_t heads = s.kv_heads, rows = heads * s.tokens;
  return {.k_ranges = 4 * heads * s.k_dim,
          .v_scales = 2 * rows,
          .raw_rows = 2 * heads * s.nraw * (uint64_t{s.k_dim} + s.v_dim),
          .k_codes = rows * s.k_dim,
          .v_codes = rows * s.v_dim};
}

}  // namespace kvtier
