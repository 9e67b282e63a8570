#pragma once

#include <cstdint>

#include "tiers/base/ids.h"

namespace kvtier {

/// Where the bytes of one image are: a slot of an arena, or a record of a segment. Plain data, copied freely;
/// the slot allocators that hand it out belong to the engine thread.
struct Place {
  TierId tier;
  uint32_t container = 0;  ///< host: arena id; cold: segment number
  uint32_t slot = 0;       ///< host: slot number; cold: 0
  uint64_t offset = 0;     ///< bytes from the start of the arena or segment file to the slot or record
  uint64_t bytes = 0;      ///< capacity of the slot or record, a multiple of 4096
  uint64_t epoch = 0;      ///< host: slot_epoch; cold: sequence number of the segment

  friend bool operator==(const Place&, const Place&) = default;
};

inline constexpr uint64_t kSlotAlign = 4096;
constexpr uint64_t AlignUp(uint64_t value, uint64_t align) {
  return (value + align - 1) / align * align;
}

}  // namespace kvtier
