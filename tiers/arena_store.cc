#include "tiers/arena_store.h"

#include <fcntl.h>

#include <atomic>
#include <string>
#include <utility>

#include "tiers/base/mapping.h"
#include "tiers/base/memfd.h"

namespace kvtier {

struct ArenaStore::Arena {
  ArenaSpec spec;
  UniqueFd file;
  MappedMemory memory;  ///< the only writable mapping there can be

  std::atomic_ref<uint64_t> Epoch(uint32_t slot) const {
    KVTIER_CHECK(slot < spec.slots);
    return std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(memory.data())[slot]);
  }
  uint64_t SlotOffset(uint32_t slot) const { return ArenaHeaderBytes(spec.slots) + slot * spec.slot_bytes; }
  std::span<std::byte> Slot(const Place& place) const {
    return memory.span().subspan(place.offset, place.bytes);
  }
};

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free, "shared with other processes");

ArenaStore::ArenaStore() = default;
ArenaStore::~ArenaStore() = default;

Status ArenaStore::Create(const ArenaSpec& spec) {
  constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 40;
  const bool fits = spec.slots > 0 && spec.slot_bytes > 0 && spec.slot_bytes % kSlotAlign == 0 &&
                    spec.slot_bytes <= kMaxArenaBytes / spec.slots;
  if (!fits) return Status(Code::kInvalidArgument, "an arena of impossible size");
  if (Find(spec.id.value) != nullptr) return Status(Code::kAlreadyExists, "this arena exists");

  auto arena = std::make_shared<Arena>();
  arena->spec = spec;
  const uint64_t bytes = ArenaBytes(spec.slots, spec.slot_bytes);
  KVTIER_ASSIGN(arena->file, MakeMemoryFile("kvtier-arena", bytes));
  KVTIER_ASSIGN(arena->memory, MappedMemory::MapShared(arena->file.get(), bytes, MapAccess::kReadWrite));
  KVTIER_TRY(arena->memory.Prefault());
  // After our own mapping: from here on nobody gets another writable one, nor changes the size under anyone.
  KVTIER_TRY(AddSeals(arena->file.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));

  std::lock_guard lock(mutex_);
  if (!arenas_.emplace(spec.id.value, std::move(arena)).second) {
    return Status(Code::kAlreadyExists, "this arena exists");
  }
  allocated_bytes_ += bytes;
  return Status::Ok();
}

void ArenaStore::Destroy(ArenaId id) {
  std::shared_ptr<Arena> arena;  // unmapped after the lock is released
  {
    std::lock_guard lock(mutex_);
    const auto found = arenas_.find(id.value);
    if (found == arenas_.end()) return;
    arena = std::move(found->second);
    arenas_.erase(found);
    allocated_bytes_ -= ArenaBytes(arena->spec.slots, arena->spec.slot_bytes);
  }
}

Result<int> ArenaStore::Descriptor(ArenaId id) const {
  const std::shared_ptr<Arena> arena = Find(id.value);
  if (arena == nullptr) return Status(Code::kNotFound, "no such arena");
  return arena->file.get();
}

uint64_t ArenaStore::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return allocated_bytes_;
}

Result<uint64_t> ArenaStore::ReadEpoch(ArenaId id, uint32_t slot) const {
  const std::shared_ptr<Arena> arena = Find(id.value);
  if (arena == nullptr || slot >= arena->spec.slots) return Status(Code::kNotFound, "no such slot");
  return arena->Epoch(slot).load(std::memory_order_acquire);
}

std::shared_ptr<ArenaStore::Arena> ArenaStore::Find(uint32_t id) const {
  std::lock_guard lock(mutex_);
  const auto found = arenas_.find(id);
  return found == arenas_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<ArenaStore::Arena>> ArenaStore::Resolve(const Place& place) const {
  std::shared_ptr<Arena> arena = Find(place.container);
  if (arena == nullptr) return Status(Code::kNotFound, "no arena " + std::to_string(place.container));
  const bool is_slot = place.slot < arena->spec.slots && place.offset == arena->SlotOffset(place.slot) &&
                       place.bytes <= arena->spec.slot_bytes;
  if (!is_slot)
    return Status(Code::kInvalidArgument, "not a slot of arena " + std::to_string(place.container));
  return arena;
}

Result<std::span<const std::byte>> ArenaStore::Read(const Place& place, BlockIo& /*io*/,
                                                    AlignedBuffer& /*bounce*/) {
  KVTIER_ASSIGN(const std::shared_ptr<Arena> arena, Resolve(place));
  if (arena->Epoch(place.slot).load(std::memory_order_acquire) != place.epoch) {
    return Status(Code::kStale, "the slot has another epoch");
  }
  return std::span<const std::byte>(arena->Slot(place));
}

Result<std::span<std::byte>> ArenaStore::BeginWrite(const Place& place, AlignedBuffer& /*bounce*/) {
  KVTIER_ASSIGN(const std::shared_ptr<Arena> arena, Resolve(place));
  const std::atomic_ref<uint64_t> epoch = arena->Epoch(place.slot);
  if (epoch.load(std::memory_order_relaxed) > place.epoch)
    return Status(Code::kStale, "the slot has a newer epoch");
  epoch.store(place.epoch, std::memory_order_release);
  // A release store alone lets later writes overtake it; a reader that sees a new byte must see the new
  // epoch.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return arena->Slot(place);
}

Status ArenaStore::FinishWrite(const Place& place, BlockIo& /*io*/, std::span<std::byte> built,
                               uint64_t image_bytes, const RecordMeta& /*meta*/) {
  KVTIER_ASSIGN(const std::shared_ptr<Arena> arena, Resolve(place));
  KVTIER_CHECK(built.data() == arena->Slot(place).data() && image_bytes <= place.bytes);
  return Status::Ok();
}

}  // namespace kvtier
