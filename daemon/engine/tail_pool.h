#pragma once

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "daemon/engine/entry.h"
#include "tiers/place.h"

namespace kvtier {

/// One tail of one block, small: a tier has many.
struct TailSpot {
  uint32_t offset_blocks = 0;  ///< of kSlotAlign bytes
  uint32_t blocks = 0;         ///< 0: none
  uint16_t segment = 0;
  uint16_t error = 0;  ///< fp16: of K, or of V, with it

  bool there() const { return blocks > 0; }
  uint64_t bytes() const { return blocks * kSlotAlign; }
  uint64_t offset() const { return offset_blocks * kSlotAlign; }
};
static_assert(sizeof(TailSpot) == 12);

/// The K and V tails of a cold tier's blocks, by row of the table; a block without any takes nothing.
/// Threads: single-owner.
class TailPool {
 public:
  TailSpot Find(EntryId id, ColdPart part) const {
    const auto found = spots_.find(id.value);
    return found == spots_.end() ? TailSpot{} : found->second[TailIndex(part)];
  }
  void Set(EntryId id, ColdPart part, const TailSpot& spot) { spots_[id.value][TailIndex(part)] = spot; }
  void Clear(EntryId id, ColdPart part) {
    const auto found = spots_.find(id.value);
    if (found == spots_.end()) return;
    found->second[TailIndex(part)] = {};
    if (!found->second[0].there() && !found->second[1].there()) spots_.erase(found);
  }
  uint64_t bytes() const { return spots_.capacity() * (sizeof(*spots_.begin()) + 1); }

 private:
  absl::flat_hash_map<uint32_t, std::array<TailSpot, kColdTails.size()>> spots_;
};

}  // namespace kvtier
