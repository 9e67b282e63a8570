#pragma once

#include <array>
#include <cstdint>

#include "codecs/codec.h"
#include "monitoring/metrics.h"
#include "tiers/base/clock.h"
#include "tiers/base/ids.h"
#include "tiers/place.h"

namespace kvtier {

using EntryId = Id<struct EntryTag, uint32_t>;        ///< a row of the block table; reused
using TransferId = Id<struct TransferTag, uint64_t>;  ///< never reused; 0: none
using OpId = Id<struct OpTag, uint64_t>;  ///< a request that takes more than one step; never reused

inline constexpr EntryId kNoEntry{UINT32_MAX};
inline constexpr TimePoint kNever = TimePoint::max();

/// absent -> writing -> present -> freeing -> absent; writing -> absent when the write fails. Only `present`
/// is visible; `freeing` still has readers.
enum class CopyState : uint8_t { kAbsent, kWriting, kPresent, kFreeing };

/// The image of a block on one tier.
struct Copy {
  CopyState state = CopyState::kAbsent;
  CodecId codec = CodecId::kNone;  ///< what a reader gets: with the tails, where there are any
  bool in_parts = false;           ///< cold: an int2 base with a K tail at least, in Tier::tails
  uint32_t lease_pins = 0;
  uint32_t job_pins = 0;
  float k_error = 0, v_error = 0;  ///< of the image at `place`
  uint64_t image_bytes = 0;        ///< likewise
  Place place;                     ///< bytes is 0 while a writing copy waits for space
  TransferId transfer{};           ///< that writes it

  bool pinned() const { return lease_pins > 0 || job_pins > 0; }
  bool has_place() const { return place.bytes > 0; }
};

/// A block. What a lookup reads comes first.
struct Entry {
  Key key;
  TenantId tenant;
  ModelId model;
  std::array<Precision, kMaxTiers> precision{};  ///< of the present copy on each tier
  uint16_t tokens = 0;
  bool is_tail = false;
  bool in_table = false;  ///< false: removed, on its way out
  bool storing = false;   ///< a put is bringing its first copy
  Precision floor = Precision::kNone;
  uint8_t priority = 0;
  TimePoint expires = kNever;

  Key parent;
  uint64_t first_position = 0;
  uint32_t children = 0;    ///< stored blocks that continue this one
  uint32_t generation = 0;  ///< of the row: tells a reused one apart
  uint64_t born = 0;        ///< numbered among operations
  uint64_t last_use = 0;    ///< counts uses of all blocks
  std::array<Copy, kMaxTiers> copies{};

  bool Has(uint32_t tier) const { return precision[tier] != Precision::kNone; }
  bool Stored() const {
    for (const Precision p : precision) {
      if (p != Precision::kNone) return true;
    }
    return false;
  }
  bool HasAnyCopy() const {
    for (const Copy& copy : copies) {
      if (copy.state != CopyState::kAbsent) return true;
    }
    return false;
  }
};

}  // namespace kvtier
