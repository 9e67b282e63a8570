#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "tiers/base/unique_fd.h"
#include "tiers/medium.h"

namespace kvtier {

/// Arena file, version 1: u64 slot_epoch[slots], padded to 4096, then the slots, each slot_bytes (a multiple
/// of 4096).
constexpr uint64_t ArenaHeaderBytes(uint32_t slots) {
  return AlignUp(uint64_t{slots} * 8, kSlotAlign);
}
constexpr uint64_t ArenaBytes(uint32_t slots, uint64_t slot_bytes) {
  return ArenaHeaderBytes(slots) + slots * slot_bytes;
}

struct ArenaSpec {
  ArenaId id;
  TierId tier;
  TenantId tenant;  ///< for life: whoever maps an arena can read all of it
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
};

/// The memory of the host tiers: sealed memfds, created and prefaulted on workers, mapped writable by the
/// daemon only. One store serves all host tiers. Threads: any; the mutex guards the id map only.
class ArenaStore final : public Medium {
 public:
  ArenaStore();
  ~ArenaStore() override;

  /// Creates, sizes, maps, prefaults and seals (SHRINK | GROW | FUTURE_WRITE | SEAL) one arena. Slow: on a
  /// worker. Errors: kResourceExhausted, kUnavailable, kInvalidArgument (a spec that cannot be),
  /// kAlreadyExists.
  Status Create(const ArenaSpec& spec);
  /// Unmaps and closes. The caller knows that nobody uses it.
  void Destroy(ArenaId id);
  /// A descriptor to send to the tenant's sessions; valid until Destroy. Errors: kNotFound.
  Result<int> Descriptor(ArenaId id) const;
  uint64_t allocated_bytes() const;
  /// The slot's epoch as clients see it. Errors: kNotFound.
  Result<uint64_t> ReadEpoch(ArenaId id, uint32_t slot) const;

  /// Medium. `place.container` is the arena, `place.epoch` the slot's epoch, written to the arena before the
  /// first byte of the slot changes (full fence), so that a reader of the old image finds out. Errors:
  /// kNotFound (no such arena), kInvalidArgument (a place that is no slot of it), kStale (the slot's epoch is
  /// newer than the place's; for Read also older).
  Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) override;
  Result<std::span<std::byte>> BeginWrite(const Place& place, AlignedBuffer& bounce) override;
  Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built, uint64_t image_bytes,
                     const RecordMeta& meta) override;

 private:
  struct Arena;
  std::shared_ptr<Arena> Find(uint32_t id) const;
  Result<std::shared_ptr<Arena>> Resolve(const Place& place) const;

  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<Arena>> arenas_;
  uint64_t allocated_bytes_ = 0;
};

}  // namespace kvtier
