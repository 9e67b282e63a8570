#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "proto/session.pb.h"
#include "tiers/base/clock.h"
#include "tiers/base/mapping.h"
#include "tiers/base/status.h"

namespace kvtier::client {

/// Memory of the daemon's that blocks are read from, mapped read-only: a read pool arena (layout:
/// tiers/arena_store.h), or the store of a CXL tier, whose slots are its segments (tiers/FORMAT.md). Threads:
/// any.
class Arena {
 public:
  struct Layout {
    uint32_t slots = 0;
    uint64_t first_slot = 0, slot_bytes = 0;
    uint64_t first_epoch = 0, epoch_stride = 0;  ///< where the epochs of the slots are
    uint64_t align = 0;                          ///< of images
    /// Of a store: stands in every segment's header behind the epoch, which counts beside no other.
    std::optional<std::array<uint64_t, 2>> uuid = {};
  };
  Arena(uint32_t id, const Layout& layout, MappedMemory memory);

  uint32_t id() const { return id_; }
  /// The bytes of an extent. Errors: kInternal when it is not inside the slot.
  Result<std::span<const std::byte>> At(uint32_t slot, uint64_t offset, uint64_t bytes) const;
  /// Current epoch of a slot, ordered before every later read of its bytes. `slot` was accepted by At.
  uint64_t EpochBeforeRead(uint32_t slot) const;
  /// The same, ordered after every earlier read of its bytes.
  uint64_t EpochAfterRead(uint32_t slot) const;
  /// Makes the pages present, so that the first fetch does not fault. Advisory.
  void Prefault() const;

 private:
  const uint64_t* EpochWord(uint32_t slot) const;
  uint64_t ReadEpoch(uint32_t slot) const;

  const uint32_t id_;
  const Layout layout_;
  const MappedMemory memory_;
};

/// Arenas that the daemon has offered to this session. Threads: any.
/// A retired arena stays mapped as long as somebody holds it; then `unmapped` is called, once, on whatever
/// thread was last.
class ArenaMap {
 public:
  using Unmapped = std::function<void(uint32_t arena)>;
  explicit ArenaMap(Unmapped unmapped);

  /// Maps and adds. Errors: kInvalidArgument for a descriptor that is not what the offer says; those of mmap.
  Result<std::shared_ptr<const Arena>> Add(const v1::ArenaOffer& offer, int fd);
  /// The same for a store, which may be a file or a device: that nobody cuts it is the daemon's promise.
  Status AddStore(const v1::StoreOffer& offer, int fd);
  void Retire(uint32_t arena);
  /// Null when there is none.
  std::shared_ptr<const Arena> Find(uint32_t arena) const;
  /// Waits for the offer: it travels beside the reply that names the arena. Null at the deadline or after
  /// Close.
  std::shared_ptr<const Arena> WaitFor(uint32_t arena, TimePoint deadline) const;
  /// The session has ended: nobody waits any more, and arenas stay mapped only for the fetches under way.
  void Close();

 private:
  struct Entry;
  Result<std::shared_ptr<const Arena>> Insert(uint32_t id, const Arena::Layout& layout, MappedMemory memory);

  const Unmapped unmapped_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::unordered_map<uint32_t, std::shared_ptr<Entry>> arenas_;
  bool closed_ = false;
};

}  // namespace kvtier::client
