#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "client/src/arena_map.h"
#include "client/src/checked_blocks.h"
#include "client/src/lease.h"
#include "tiers/image.h"

namespace kvtier::client {

/// Whether the bytes of a slot are still those of a lease.
struct SlotGuard {
  const Arena& arena;
  uint32_t slot = 0;
  uint64_t epoch = 0;
  bool HoldsBefore() const { return arena.EpochBeforeRead(slot) == epoch; }
  bool HoldsAfter() const { return arena.EpochAfterRead(slot) == epoch; }
};

/// What a read answers whose guard does not hold.
Status Torn();

/// Parses and identifies `bytes`. Errors: kStale when the slot is no longer the guard's; those of ParseImage
/// and MatchIdentity.
Result<std::shared_ptr<CheckedBlock>> CheckBlock(std::span<const std::byte> bytes,
                                                 const BlockIdentity& expected, const SlotGuard& guard);

/// The image of a leased block in its mapped arena. Threads: any.
struct LeasedImage {
  std::shared_ptr<const Arena> arena;  ///< held, so that the mapping stays although the arena may be retired
  std::shared_ptr<CheckedBlock> block;
  uint32_t slot = 0;
  uint64_t epoch = 0;
  SlotGuard guard() const { return {.arena = *arena, .slot = slot, .epoch = epoch}; }
};
/// Of block `index` of the lease, parsed the first time. Errors: kStale when lease, arena or slot have ended;
/// those of CheckBlock.
Result<LeasedImage> OpenBlock(Lease& lease, size_t index);

}  // namespace kvtier::client
