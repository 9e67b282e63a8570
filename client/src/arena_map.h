#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "proto/session.pb.h"
#include "tiers/base/clock.h"
#include "tiers/base/mapping.h"
#include "tiers/base/status.h"

namespace kvtier::client {

/// A read pool arena of the daemon's, mapped read-only (layout: tiers/arena_store.h). Threads: any.
class Arena {
 public:
  Arena(uint32_t id, uint32_t slots, MappedMemory memory);

  uint32_t id() const { return id_; }
  /// The bytes of an extent. Errors: kInternal when it is not inside the arena.
  Result<std::span<const std::byte>> At(uint32_t slot, uint64_t offset, uint64_t bytes) const;
  /// Current epoch of a slot, ordered before every later read of its bytes. `slot` was accepted by At.
  uint64_t EpochBeforeRead(uint32_t slot) const;
  /// The same, ordered after every earlier read of its bytes.
  uint64_t EpochAfterRead(uint32_t slot) const;
  /// Makes the pages present, so that the first fetch does not fault. Advisory.
  void Prefault() const;

 private:
  const uint64_t* EpochWord(uint32_t slot) const;

  const uint32_t id_;
  const uint32_t slots_;
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

  const Unmapped unmapped_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::unordered_map<uint32_t, std::shared_ptr<Entry>> arenas_;
  bool closed_ = false;
};

}  // namespace kvtier::client
