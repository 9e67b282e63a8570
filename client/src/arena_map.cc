#include "client/src/arena_map.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <optional>
#include <utility>

#include "tiers/arena_store.h"
#include "tiers/base/memfd.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace kvtier::client {

Arena::Arena(uint32_t id, uint32_t slots, MappedMemory memory)
    : id_(id), slots_(slots), memory_(std::move(memory)) {}

Result<std::span<const std::byte>> Arena::At(uint32_t slot, uint64_t offset, uint64_t bytes) const {
  const bool inside = slot < slots_ && offset >= ArenaHeaderBytes(slots_) && offset % kSlotAlign == 0 &&
                      offset <= memory_.size() && bytes <= memory_.size() - offset;
  if (!inside) return Status(Code::kInternal, "the daemon named bytes outside arena " + std::to_string(id_));
  return std::span<const std::byte>(memory_.data() + offset, bytes);
}

const uint64_t* Arena::EpochWord(uint32_t slot) const {
  return reinterpret_cast<const uint64_t*>(memory_.data()) + slot;
}

uint64_t Arena::EpochBeforeRead(uint32_t slot) const {
  return __atomic_load_n(EpochWord(slot), __ATOMIC_ACQUIRE);
}

uint64_t Arena::EpochAfterRead(uint32_t slot) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return __atomic_load_n(EpochWord(slot), __ATOMIC_RELAXED);
}

void Arena::Prefault() const {
  ::madvise(memory_.data(), memory_.size(), MADV_POPULATE_READ);
}

/// Holders of the arena share it through this, so that the last one leaving a retired arena tells.
struct ArenaMap::Entry {
  Entry(uint32_t id_in, uint32_t slots, MappedMemory memory)
      : id(id_in), arena(std::in_place, id_in, slots, std::move(memory)) {}
  ~Entry() {
    arena.reset();
    if (retired) unmapped(id);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  const uint32_t id;
  std::optional<const Arena> arena;
  std::atomic<bool> retired = false;
  Unmapped unmapped;
};

ArenaMap::ArenaMap(Unmapped unmapped) : unmapped_(std::move(unmapped)) {}

Result<std::shared_ptr<const Arena>> ArenaMap::Add(const v1::ArenaOffer& offer, int fd) {
  const uint64_t bytes = offer.bytes();
  if (offer.slots() == 0 || bytes < ArenaHeaderBytes(offer.slots())) {
    return Status(Code::kInvalidArgument, "an arena without slots was offered");
  }
  // Without the seal the file could be cut under the mapping, and reading it would kill the process.
  KVTIER_TRY(CheckSealed(fd, F_SEAL_SHRINK, bytes));
  KVTIER_ASSIGN(MappedMemory memory, MappedMemory::MapShared(fd, bytes, MapAccess::kReadOnly));
  ::madvise(memory.data(), memory.size(), MADV_DONTFORK);
  auto entry = std::make_shared<Entry>(offer.arena(), offer.slots(), std::move(memory));
  entry->unmapped = unmapped_;
  {
    std::lock_guard lock(mutex_);
    if (!arenas_.try_emplace(offer.arena(), entry).second) {
      return Status(Code::kInvalidArgument, "arena " + std::to_string(offer.arena()) + " was offered twice");
    }
  }
  changed_.notify_all();
  return std::shared_ptr<const Arena>(entry, &*entry->arena);
}

void ArenaMap::Retire(uint32_t arena) {
  std::shared_ptr<Entry> entry;  // unmapped after the lock is gone
  std::lock_guard lock(mutex_);
  const auto it = arenas_.find(arena);
  if (it == arenas_.end()) return;
  entry = std::move(it->second);
  arenas_.erase(it);
  entry->retired = true;
}

std::shared_ptr<const Arena> ArenaMap::Find(uint32_t arena) const {
  std::lock_guard lock(mutex_);
  const auto it = arenas_.find(arena);
  if (it == arenas_.end()) return nullptr;
  return std::shared_ptr<const Arena>(it->second, &*it->second->arena);
}

std::shared_ptr<const Arena> ArenaMap::WaitFor(uint32_t arena, TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return closed_ || arenas_.contains(arena); });
  const auto it = arenas_.find(arena);
  if (it == arenas_.end()) return nullptr;
  return std::shared_ptr<const Arena>(it->second, &*it->second->arena);
}

void ArenaMap::Close() {
  std::unordered_map<uint32_t, std::shared_ptr<Entry>> ended;  // unmapped after the lock is gone
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    ended = std::exchange(arenas_, {});
  }
  changed_.notify_all();
}

}  // namespace kvtier::client
