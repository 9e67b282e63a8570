#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/plane_sections.h"

namespace kvtier {

/// Owner of all sections of one layer of the plane family, each in memory of its own, so that a sanitizer
/// sees every step outside of one.
class PlaneBuffers {
 public:
  PlaneBuffers(PlaneBuffers&&) = default;
  explicit PlaneBuffers(const BlockShape& s, const std::function<uint8_t()>& fill) {
    const size_t heads = s.kv_heads, rows = heads * PaddedTokens(s);
    const auto section = [&](uint8_t*& pointer, size_t bytes) {
      std::vector<uint8_t>& memory = memory_.emplace_back(bytes);
      for (uint8_t& byte : memory) byte = fill();
      pointer = memory.data();
    };
    memory_.reserve(kSections);
    section(sections_.k_scale, 2 * heads * s.k_dim);
    section(sections_.k_min, 2 * heads * s.k_dim);
    section(sections_.v_scale, rows * VGroups(s));
    section(sections_.k_raw, 2 * heads * s.nraw * s.k_dim);
    section(sections_.v_raw, 2 * heads * s.nraw * s.v_dim);
    section(sections_.k_high, rows * s.k_dim / 4);
    section(sections_.v_high, rows * s.v_dim / 4);
    section(sections_.boost_ids, heads * s.nb);
    section(sections_.boost_low, rows * s.nb / 4);
    section(sections_.k_low, rows * s.k_dim / 4);
    section(sections_.v_low, rows * s.v_dim / 4);
  }
  /// Every byte the same.
  PlaneBuffers(const BlockShape& s, uint8_t fill) : PlaneBuffers(s, [fill] { return fill; }) {}

  const PlaneSections<uint8_t>& sections() const { return sections_; }
  PlaneSections<const uint8_t> Read() const {
    const PlaneSections<uint8_t>& s = sections_;
    return {.k_scale = s.k_scale,
            .k_min = s.k_min,
            .v_scale = s.v_scale,
            .k_raw = s.k_raw,
            .v_raw = s.v_raw,
            .k_high = s.k_high,
            .v_high = s.v_high,
            .boost_ids = s.boost_ids,
            .boost_low = s.boost_low,
            .k_low = s.k_low,
            .v_low = s.v_low};
  }
  /// All sections, one after the other.
  std::vector<uint8_t> Bytes() const {
    std::vector<uint8_t> all;
    for (const std::vector<uint8_t>& section : memory_) all.insert(all.end(), section.begin(), section.end());
    return all;
  }

 private:
  static constexpr size_t kSections = 11;
  std::vector<std::vector<uint8_t>> memory_;
  PlaneSections<uint8_t> sections_;
};

}  // namespace kvtier
