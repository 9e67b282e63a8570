#include "client/src/arena_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tiers/arena_store.h"
#include "tiers/base/memfd.h"
#include "tiers/cold_format.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace kvtier::client {
namespace {

/// No slot has it.
constexpr uint64_t kNoEpoch = UINT64_MAX;
/// From the epoch of a segment to the uuid beside which it counts, in words.
constexpr size_t kUuidWord = (offsetof(SegmentHeader, uuid) - offsetof(SegmentHeader, sequence)) / 8;
static_assert(offsetof(SegmentHeader, sequence) % 8 == 0 && offsetof(SegmentHeader, uuid) % 8 == 0);

/// Whether the descriptor holds so many bytes to map: of a device nobody can tell before.
bool HoldsBytes(int fd, uint64_t bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return false;
  return S_ISCHR(info.st_mode) ||
         (S_ISREG(info.st_mode) && info.st_size >= 0 && static_cast<uint64_t>(info.st_size) >= bytes);
}

Result<Arena::Layout> LayoutOf(const v1::StoreOffer& offer) {
  const uint64_t bytes = offer.bytes(), segment_bytes = offer.segment_bytes(), first = offer.first_segment();
  Arena::Layout layout{.slots = offer.segments(),
                       .first_slot = first,
                       .slot_bytes = segment_bytes,
                       .first_epoch = first + offsetof(SegmentHeader, sequence),
                       .epoch_stride = segment_bytes,
                       .align = kColdRecordHeaderBytes,
                       .uuid = std::array<uint64_t, 2>{}};
  const bool possible = layout.slots > 0 && segment_bytes >= kColdSegmentHeaderBytes &&
                        segment_bytes % kColdBlockBytes == 0 && first % kColdBlockBytes == 0 &&
                        first <= bytes && segment_bytes <= (bytes - first) / layout.slots &&
                        offer.store_uuid().size() == sizeof(*layout.uuid);
  if (!possible) return Status(Code::kInvalidArgument, "a store of impossible size was offered");
  std::memcpy(layout.uuid->data(), offer.store_uuid().data(), sizeof(*layout.uuid));
  return layout;
}

}  // namespace

Arena::Arena(uint32_t id, const Layout& layout, MappedMemory memory)
    : id_(id), layout_(layout), memory_(std::move(memory)) {}

Result<std::span<const std::byte>> Arena::At(uint32_t slot, uint64_t offset, uint64_t bytes) const {
  const uint64_t start = layout_.first_slot + slot * layout_.slot_bytes;
  const bool inside = slot < layout_.slots && offset >= start && offset % layout_.align == 0 &&
                      offset - start <= layout_.slot_bytes && bytes <= layout_.slot_bytes - (offset - start);
  if (!inside) return Status(Code::kInternal, "the daemon named bytes outside arena " + std::to_string(id_));
  return std::span<const std::byte>(memory_.data() + offset, bytes);
}

const uint64_t* Arena::EpochWord(uint32_t slot) const {
  return reinterpret_cast<const uint64_t*>(memory_.data() + layout_.first_epoch +
                                           slot * layout_.epoch_stride);
}

uint64_t Arena::ReadEpoch(uint32_t slot) const {
  const uint64_t* word = EpochWord(slot);
  const uint64_t epoch = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  if (!layout_.uuid) return epoch;
  // A store that was made anew has another uuid, written over zeros: its epochs may come again.
  for (size_t i = 0; i < layout_.uuid->size(); ++i) {
    if (__atomic_load_n(word + kUuidWord + i, __ATOMIC_ACQUIRE) != (*layout_.uuid)[i]) return kNoEpoch;
  }
  return epoch;
}

uint64_t Arena::EpochBeforeRead(uint32_t slot) const {
  return ReadEpoch(slot);
}

uint64_t Arena::EpochAfterRead(uint32_t slot) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return ReadEpoch(slot);
}

void Arena::Prefault() const {
  ::madvise(memory_.data(), memory_.size(), MADV_POPULATE_READ);
}

/// Holders of the arena share it through this, so that the last one leaving a retired arena tells.
struct ArenaMap::Entry {
  Entry(uint32_t id_in, const Arena::Layout& layout, MappedMemory memory)
      : id(id_in), arena(std::in_place, id_in, layout, std::move(memory)) {}
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
  const uint64_t first_slot = ArenaHeaderBytes(offer.slots());
  if (offer.slots() == 0 || bytes < first_slot || offer.slot_bytes() > (bytes - first_slot) / offer.slots()) {
    return Status(Code::kInvalidArgument, "an arena without slots was offered, or smaller than they are");
  }
  // Without the seal the file could be cut under the mapping, and reading it would kill the process.
  KVTIER_TRY(CheckSealed(fd, F_SEAL_SHRINK, bytes));
  KVTIER_ASSIGN(MappedMemory memory, MappedMemory::MapShared(fd, bytes, MapAccess::kReadOnly));
  return Insert(offer.arena(),
                {.slots = offer.slots(),
                 .first_slot = first_slot,
                 .slot_bytes = offer.slot_bytes(),
                 .first_epoch = 0,
                 .epoch_stride = sizeof(uint64_t),
                 .align = kSlotAlign},
                std::move(memory));
}

Status ArenaMap::AddStore(const v1::StoreOffer& offer, int fd) {
  KVTIER_ASSIGN(const Arena::Layout layout, LayoutOf(offer));
  if (!HoldsBytes(fd, offer.bytes())) {
    return Status(Code::kInvalidArgument, "the store that was offered is smaller than agreed");
  }
  KVTIER_ASSIGN(MappedMemory memory, MappedMemory::MapShared(fd, offer.bytes(), MapAccess::kReadOnly));
  return Insert(offer.arena(), layout, std::move(memory)).status();
}

Result<std::shared_ptr<const Arena>> ArenaMap::Insert(uint32_t id, const Arena::Layout& layout,
                                                      MappedMemory memory) {
  ::madvise(memory.data(), memory.size(), MADV_DONTFORK);
  auto entry = std::make_shared<Entry>(id, layout, std::move(memory));
  entry->unmapped = unmapped_;
  {
    std::lock_guard lock(mutex_);
    if (!arenas_.try_emplace(id, entry).second) {
      return Status(Code::kInvalidArgument, "arena " + std::to_string(id) + " was offered twice");
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
