#include "tiers/arena_allocator.h"

#include <algorithm>

#include "tiers/base/check.h"

namespace kvtier {

std::optional<Place> ArenaAllocator::Allocate(const SlotClass& slot_class, uint32_t owner) {
  KVTIER_CHECK(owner != kNoOwner);
  const auto found = classes_.find(slot_class);
  if (found == classes_.end() || found->second.with_space.empty()) return std::nullopt;
  ClassState& state = found->second;
  Arena& arena = Find(ArenaId{*state.with_space.begin()});
  const uint32_t slot = arena.free.back();
  if (arena.empty()) empty_.erase(arena.spec.id.value);
  arena.free.pop_back();
  if (arena.free.empty()) state.with_space.erase(state.with_space.begin());
  --state.free_slots;
  free_bytes_ -= slot_class.slot_bytes;
  used_bytes_ += slot_class.slot_bytes;
  KVTIER_CHECK(arena.owners[slot] == kNoOwner);
  arena.owners[slot] = owner;
  ++arena.epochs[slot];
  return PlaceOf(arena.spec.id, slot);
}

Place ArenaAllocator::PlaceOf(ArenaId id, uint32_t slot) const {
  const Arena& arena = this->arena(id);
  return {.tier = tier_,
          .container = arena.spec.id.value,
          .slot = slot,
          .offset = ArenaHeaderBytes(arena.spec.slots) + slot * arena.spec.slot_bytes,
          .bytes = arena.spec.slot_bytes,
          .epoch = arena.epochs[slot]};
}

void ArenaAllocator::Free(const Place& place) {
  Arena& arena = Find(ArenaId{place.container});
  KVTIER_CHECK(place.tier == tier_ && place.slot < arena.spec.slots && place.bytes == arena.spec.slot_bytes);
  KVTIER_CHECK(arena.owners[place.slot] != kNoOwner && arena.epochs[place.slot] == place.epoch);
  arena.owners[place.slot] = kNoOwner;
  arena.free.push_back(place.slot);
  used_bytes_ -= place.bytes;
  if (arena.state != ArenaState::kReady) return;
  ClassState& state = classes_[{arena.spec.tenant, arena.spec.slot_bytes}];
  state.with_space.insert(arena.spec.id.value);
  if (arena.empty()) empty_.insert(arena.spec.id.value);
  ++state.free_slots;
  free_bytes_ += place.bytes;
}

uint32_t ArenaAllocator::UsualSlots(uint64_t slot_bytes) const {
  const uint64_t arena_bytes = std::min(kMaxArenaBytes, capacity_bytes_ / kArenasPerTier);
  return static_cast<uint32_t>(std::max<uint64_t>(1, arena_bytes / slot_bytes));
}

std::optional<ArenaSpec> ArenaAllocator::Plan(ArenaId id, const SlotClass& slot_class) {
  KVTIER_CHECK(slot_class.slot_bytes > 0 && slot_class.slot_bytes % kSlotAlign == 0);
  const uint64_t left = unplanned_bytes();
  uint64_t fitting = std::min<uint64_t>(UsualSlots(slot_class.slot_bytes), left / slot_class.slot_bytes);
  // Few slots have a small header, too: as many as a header holds epochs are tried.
  while (fitting > 0 && ArenaBytes(static_cast<uint32_t>(fitting), slot_class.slot_bytes) > left) --fitting;
  if (fitting == 0) return std::nullopt;
  const auto slots = static_cast<uint32_t>(fitting);
  const ArenaSpec spec{.id = id,
                       .tier = tier_,
                       .tenant = slot_class.tenant,
                       .slots = slots,
                       .slot_bytes = slot_class.slot_bytes};
  const auto [at, fresh] = arenas_.try_emplace(id.value);
  KVTIER_CHECK(fresh);
  Arena& arena = at->second;
  arena.spec = spec;
  arena.epochs.assign(slots, 0);
  arena.owners.assign(slots, kNoOwner);
  arena.free.resize(slots);
  for (uint32_t i = 0; i < slots; ++i) arena.free[i] = slots - 1 - i;
  arena_bytes_ += arena.bytes();
  KVTIER_CHECK(arena_bytes_ <= capacity_bytes_);
  return spec;
}

void ArenaAllocator::Created(ArenaId id) {
  Arena& arena = Find(id);
  KVTIER_CHECK(arena.state == ArenaState::kCreating);
  arena.state = ArenaState::kReady;
  EnterClass(arena);
}

void ArenaAllocator::CreateFailed(ArenaId id) {
  KVTIER_CHECK(Find(id).state == ArenaState::kCreating);
  arena_bytes_ -= Find(id).bytes();
  arenas_.erase(id.value);
}

void ArenaAllocator::Drain(ArenaId id) {
  Arena& arena = Find(id);
  KVTIER_CHECK(arena.state == ArenaState::kReady);
  LeaveClass(arena);
  arena.state = ArenaState::kDraining;
}

void ArenaAllocator::Undrain(ArenaId id) {
  Arena& arena = Find(id);
  KVTIER_CHECK(arena.state == ArenaState::kDraining);
  arena.state = ArenaState::kReady;
  EnterClass(arena);
}

void ArenaAllocator::Retire(ArenaId id) {
  Arena& arena = Find(id);
  KVTIER_CHECK(arena.state == ArenaState::kReady || arena.state == ArenaState::kDraining);
  KVTIER_CHECK(arena.empty());
  if (arena.state == ArenaState::kReady) LeaveClass(arena);
  arena.state = ArenaState::kRetired;
}

void ArenaAllocator::Destroyed(ArenaId id) {
  KVTIER_CHECK(Find(id).state == ArenaState::kRetired);
  arena_bytes_ -= Find(id).bytes();
  arenas_.erase(id.value);
}

const ArenaAllocator::Arena& ArenaAllocator::arena(ArenaId id) const {
  const auto found = arenas_.find(id.value);
  KVTIER_CHECK(found != arenas_.end());
  return found->second;
}

ArenaAllocator::Arena& ArenaAllocator::Find(ArenaId id) {
  const auto found = arenas_.find(id.value);
  KVTIER_CHECK(found != arenas_.end());
  return found->second;
}

uint64_t ArenaAllocator::FreeSlots(const SlotClass& slot_class) const {
  const auto found = classes_.find(slot_class);
  return found == classes_.end() ? 0 : found->second.free_slots;
}

void ArenaAllocator::EnterClass(const Arena& arena) {
  ClassState& state = classes_[{arena.spec.tenant, arena.spec.slot_bytes}];
  if (!arena.free.empty()) state.with_space.insert(arena.spec.id.value);
  if (arena.empty()) empty_.insert(arena.spec.id.value);
  state.free_slots += arena.free.size();
  free_bytes_ += arena.free.size() * arena.spec.slot_bytes;
}

void ArenaAllocator::LeaveClass(const Arena& arena) {
  ClassState& state = classes_[{arena.spec.tenant, arena.spec.slot_bytes}];
  state.with_space.erase(arena.spec.id.value);
  empty_.erase(arena.spec.id.value);
  state.free_slots -= arena.free.size();
  free_bytes_ -= arena.free.size() * arena.spec.slot_bytes;
}

void ArenaAllocator::CheckInvariants() const {
  uint64_t arena_bytes = 0, used_bytes = 0, free_bytes = 0;
  for (const auto& [id, arena] : arenas_) {
    KVTIER_CHECK(arena.spec.id.value == id);
    arena_bytes += arena.bytes();
    uint64_t owned = 0;
    for (const uint32_t owner : arena.owners) owned += owner != kNoOwner;
    KVTIER_CHECK(owned + arena.free.size() == arena.spec.slots);
    for (const uint32_t slot : arena.free) KVTIER_CHECK(arena.owners[slot] == kNoOwner);
    used_bytes += owned * arena.spec.slot_bytes;
    if (arena.state == ArenaState::kReady) free_bytes += arena.free.size() * arena.spec.slot_bytes;
    KVTIER_CHECK(empty_.contains(id) == (arena.state == ArenaState::kReady && owned == 0));
    if (arena.state == ArenaState::kRetired || arena.state == ArenaState::kCreating) KVTIER_CHECK(owned == 0);
  }
  KVTIER_CHECK(arena_bytes == arena_bytes_ && arena_bytes <= capacity_bytes_);
  KVTIER_CHECK(used_bytes == used_bytes_);
  KVTIER_CHECK(free_bytes == free_bytes_);
}

}  // namespace kvtier
