#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tiers/arena_store.h"

namespace kvtier {

inline constexpr uint64_t kMaxArenaBytes = uint64_t{64} << 20;
/// A tier is at least this many arenas, so that memory can change its class in small steps.
inline constexpr uint64_t kArenasPerTier = 16;

/// Slots that may stand in for each other: one tenant's, of one size.
struct SlotClass {
  TenantId tenant;
  uint64_t slot_bytes = 0;
  friend auto operator<=>(const SlotClass&, const SlotClass&) = default;
};

/// creating -> ready <-> draining -> retired -> gone. Slots are handed out from ready arenas only.
enum class ArenaState : uint8_t { kCreating, kReady, kDraining, kRetired };

/// Hands out the slots of one host tier. An arena is accounted from the moment it is planned until it is
/// destroyed; all arenas together never exceed the capacity. Arena ids come from the caller and are never
/// used twice. Threads: single-owner. Pure bookkeeping: touches no memory of the arenas.
class ArenaAllocator {
 public:
  static constexpr uint32_t kNoOwner = UINT32_MAX;

  ArenaAllocator(TierId tier, uint64_t capacity_bytes) : tier_(tier), capacity_bytes_(capacity_bytes) {}

  /// A slot under a new epoch, for `owner` (a number of the caller's). Empty when no ready arena has one.
  std::optional<Place> Allocate(const SlotClass& slot_class, uint32_t owner);
  void Free(const Place& place);
  /// The whole place of a slot that is handed out.
  Place PlaceOf(ArenaId arena, uint32_t slot) const;

  /// Whether an arena of this class could exist at all.
  bool CouldFit(uint64_t slot_bytes) const { return ArenaBytes(1, slot_bytes) <= capacity_bytes_; }
  /// Accounts a new arena: the usual number of slots, fewer where the capacity ends. Empty when not even one
  /// slot fits.
  std::optional<ArenaSpec> Plan(ArenaId id, const SlotClass& slot_class);
  void Created(ArenaId id);
  void CreateFailed(ArenaId id);
  /// No more slots from it: it is being emptied.
  void Drain(ArenaId id);
  void Undrain(ArenaId id);
  /// Of an empty arena: it leaves its class; its bytes stay accounted until Destroyed.
  void Retire(ArenaId id);
  void Destroyed(ArenaId id);

  struct Arena {
    ArenaSpec spec;
    ArenaState state = ArenaState::kCreating;
    std::vector<uint64_t> epochs;  ///< per slot; 0 before its first use
    std::vector<uint32_t> owners;  ///< per slot; kNoOwner where free
    std::vector<uint32_t> free;
    bool empty() const { return free.size() == spec.slots; }
    uint64_t bytes() const { return ArenaBytes(spec.slots, spec.slot_bytes); }
  };
  const std::map<uint32_t, Arena>& arenas() const { return arenas_; }
  /// Ready arenas without an owned slot, the oldest first.
  const std::set<uint32_t>& empty_arenas() const { return empty_; }
  const Arena& arena(ArenaId id) const;

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t arena_bytes() const { return arena_bytes_; }
  uint64_t unplanned_bytes() const { return capacity_bytes_ - arena_bytes_; }
  /// Of all slots that are handed out.
  uint64_t used_bytes() const { return used_bytes_; }
  /// Free slots in ready arenas, in bytes and for one class.
  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t FreeSlots(const SlotClass& slot_class) const;
  /// Slots that an arena of this class has where the capacity does not end before.
  uint32_t UsualSlots(uint64_t slot_bytes) const;

  /// Aborts unless counts, lists and owners agree.
  void CheckInvariants() const;

 private:
  Arena& Find(ArenaId id);
  void EnterClass(const Arena& arena);
  void LeaveClass(const Arena& arena);

  struct ClassState {
    std::set<uint32_t>
        with_space;  ///< ready arenas with a free slot: the oldest is filled first, so that others run empty
    uint64_t free_slots = 0;
  };

  const TierId tier_;
  const uint64_t capacity_bytes_;
  uint64_t arena_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t free_bytes_ = 0;
  std::map<uint32_t, Arena> arenas_;
  std::set<uint32_t> empty_;
  std::map<SlotClass, ClassState> classes_;
};

}  // namespace kvtier
