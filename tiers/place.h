#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tiers/base/ids.h"

namespace kvtier {

/// The records that a block may have on a cold tier: its base, which is an image of its own, and the planes
/// that complete it. Each has its own stream of segments, the most useful first.
enum class ColdPart : uint8_t { kBase = 0, kKTail = 1, kVTail = 2 };
inline constexpr int kColdParts = 3;
constexpr std::size_t IndexOf(ColdPart part) {
  return static_cast<std::size_t>(part);
}

/// Where the bytes of one image (or of a cold block's planes) are: a slot of an arena, or a record of a
/// segment. Plain data, copied freely; the slot allocators that hand it out belong to the engine thread.
struct Place {
  TierId tier;
  ColdPart part = ColdPart::kBase;  ///< cold: what stands there; host: kBase
  uint32_t container = 0;           ///< host: arena id; cold: segment number
  uint32_t slot = 0;                ///< host: slot number; cold: 0
  uint64_t offset = 0;  ///< bytes from the start of the arena or segment file to the slot or record
  uint64_t bytes = 0;   ///< capacity of the slot or record, a multiple of 4096
  uint64_t epoch = 0;   ///< host: slot_epoch; cold: sequence number of the segment

  friend bool operator==(const Place&, const Place&) = default;
};

/// The places of a K tail and of a V tail, in this order; bytes is 0 where there is none.
using TailPlaces = std::array<Place, kColdParts - 1>;
inline constexpr std::array<ColdPart, kColdParts - 1> kColdTails = {ColdPart::kKTail, ColdPart::kVTail};
constexpr std::size_t TailIndex(ColdPart part) {
  return IndexOf(part) - 1;
}

inline constexpr uint64_t kSlotAlign = 4096;
constexpr uint64_t AlignUp(uint64_t value, uint64_t align) {
  return (value + align - 1) / align * align;
}

}  // namespace kvtier
