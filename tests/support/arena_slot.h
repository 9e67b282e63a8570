#pragma once

#include <cstdint>

#include "tiers/arena_store.h"

namespace kvtier {

/// A slot of an arena, as the allocator hands it out.
inline Place SlotOf(const ArenaSpec& arena, uint32_t slot, uint64_t epoch = 1) {
  return {.tier = arena.tier,
          .container = arena.id.value,
          .slot = slot,
          .offset = ArenaHeaderBytes(arena.slots) + slot * arena.slot_bytes,
          .bytes = arena.slot_bytes,
          .epoch = epoch};
}

}  // namespace kvtier
