#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codecs/codec.h"
#include "codecs/sections.h"
#include "tiers/base/check.h"

namespace kvtier {

/// Hands out the sections of one part in order.
template <typename Byte>
class SectionCursor {
 public:
  SectionCursor(Byte* part, uint64_t part_bytes) : at_(part), end_(part + part_bytes) {}

  /// The next section. A writer's padding is zeroed here; no kernel touches it.
  Byte* Take(uint64_t bytes) {
    Byte* section = at_;
    at_ += AlignSection(bytes);
    KVTIER_CHECK(at_ <= end_);
    if constexpr (!std::is_const_v<Byte>)
      memset(section + bytes, 0, static_cast<size_t>(at_ - section - bytes));
    return section;
  }
  bool AtEnd() const { return at_ == end_; }

 private:
  Byte* at_;
  Byte* end_;
};

template <typename Byte, typename Parts>
SectionCursor<Byte> CursorOf(const Parts& parts, Region region) {
  const auto part = parts.part[static_cast<int>(region)];
  return {reinterpret_cast<Byte*>(part.data()), part.size()};
}

}  // namespace kvtier
