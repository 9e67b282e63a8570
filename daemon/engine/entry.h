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

using CopyId = Id<struct CopyTag, uint32_t>;  ///< a copy in the pool; reused

inline constexpr EntryId kNoEntry{UINT32_MAX};
inline constexpr CopyId kNoCopy{UINT32_MAX};
inline constexpr TimePoint kNever = TimePoint::max();

/// Slots and records are at most this large.
inline constexpr uint64_t kMaxPlaceBytes = UINT16_MAX * kSlotAlign;

/// absent -> writing -> present -> freeing -> absent; writing -> absent when the write fails. Only `present`
/// is visible; `freeing` still has readers.
enum class CopyState : uint8_t { kAbsent, kWriting, kPresent, kFreeing };

/// The image of a block on one tier, small: a daemon has millions. Where it stands is kept without what its
/// slot allocator knows (Ladder::PlaceOf).
struct Copy {
  uint32_t lease_pins = 0;
  uint16_t job_pins = 0;
  CopyState state = CopyState::kAbsent;
  CodecId codec = CodecId::kNone;  ///< what a reader gets: with the tails, where there are any
  TierId tier;
  bool in_parts = false;           ///< cold: an int2 base with a K tail at least, in Tier::tails
  uint16_t blocks = 0;             ///< of its slot or record, each kSlotAlign bytes; 0: it waits for a place
  float k_error = 0, v_error = 0;  ///< of the image at its place
  uint32_t image_bytes = 0;        ///< likewise
  uint32_t container = 0;          ///< Place::container
  uint32_t spot = 0;               ///< host: Place::slot; cold: Place::offset by kSlotAlign
  uint32_t epoch = 0;              ///< the low half of Place::epoch: must be the allocator's
  CopyId next = kNoCopy;           ///< of the same block, on another tier
  uint32_t since = 0;              ///< tenths of a second of the engine's time when it became present

  bool pinned() const { return lease_pins > 0 || job_pins > 0; }
  bool has_place() const { return blocks > 0; }
  uint64_t place_bytes() const { return blocks * kSlotAlign; }
};
static_assert(sizeof(Copy) == 44);

/// A block. What a lookup reads comes first: 64 bytes. When it expires, a timer of the engine takes it out.
struct Entry {
  Key key;
  TenantId tenant;
  ModelId model;
  std::array<Precision, kMaxTiers> precision{};  ///< of the present copy on each tier
  CopyId first_copy = kNoCopy;                   ///< of those in the table's pool
  uint64_t last_use = 0;                         ///< counts uses of all blocks
  uint32_t generation = 0;                       ///< of the row: tells a reused one apart
  uint16_t tokens = 0;
  Precision floor = Precision::kNone;
  bool is_tail : 1 = false;
  bool in_table : 1 = false;  ///< false: removed, on its way out
  bool storing : 1 = false;   ///< a put is bringing its first copy

  Key parent;
  uint64_t first_position : 56 = 0;
  uint64_t priority : 8 = 0;
  uint32_t children = 0;  ///< stored blocks that continue this one
  uint32_t born = 0;      ///< how many clears were asked for before it came

  bool Has(uint32_t tier) const { return precision[tier] != Precision::kNone; }
  bool Stored() const {
    for (const Precision p : precision) {
      if (p != Precision::kNone) return true;
    }
    return false;
  }
  bool HasAnyCopy() const { return first_copy != kNoCopy; }
};
static_assert(sizeof(Entry) == 112);

}  // namespace kvtier
