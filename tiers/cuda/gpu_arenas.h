#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tiers/arena_store.h"
#include "tiers/cuda/gpu_encoder.h"
#include "tiers/cuda/gpu_transfers.h"
#include "tiers/medium.h"

namespace kvtier {

struct GpuArenasOptions {
  uint64_t capacity_bytes = 0;    ///< of all arenas together
  uint32_t concurrent_calls = 1;  ///< threads that read or write at once; each takes pinned staging
};

/// Arenas in the memory of one GPU, each one allocation laid out as an arena file (tiers/arena_store.h). What
/// the host hands out or takes goes through a bounce buffer. Threads: any; the mutex guards the maps only.
/// Errors: as ArenaStore, and those of the device; what went wrong with that and is no want of memory is
/// kUnavailable.
class GpuArenas final : public Medium {
 public:
  /// The device outlives it.
  GpuArenas(CudaDevice& device, const GpuArenasOptions& options) : device_(device), options_(options) {}
  ~GpuArenas() override;
  /// From now on images that are wanted in another codec are encoded on the GPU where that can be. Before the
  /// first read.
  void EncodeWith(std::unique_ptr<GpuEncoder> encoder) { encoder_ = std::move(encoder); }

  /// Allocates, and clears the epochs. Slow: on a worker.
  Status Create(const ArenaSpec& spec);
  /// The caller knows that nobody uses it, other processes included.
  void Destroy(ArenaId id);
  /// For the tenant's processes, which can then read and write all of the arena.
  Result<CudaHandle> Export(ArenaId id);
  uint64_t allocated_bytes() const;

  /// A slot's epoch is in device memory before its first byte changes.
  Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) override;
  /// All of them in one go over the bus, those that are encoded behind a look at their headers.
  void ReadParts(std::span<PartRead> reads, BlockIo& io) override;
  Result<std::span<std::byte>> BeginWrite(const Place& place, AlignedBuffer& bounce) override;
  Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built, uint64_t image_bytes,
                     const RecordMeta& meta) override;
  void FinishWrites(std::span<PartWrite> writes, BlockIo& io) override;

 private:
  struct Arena;
  std::shared_ptr<Arena> Find(uint32_t id) const;
  Result<std::shared_ptr<Arena>> Resolve(const Place& place) const;
  Result<std::unique_ptr<GpuTransfers>> Borrow();
  void GiveBack(std::unique_ptr<GpuTransfers> transfers);
  struct Pending;
  Result<Pending> Prepare(PartRead& read) const;
  Status ReadAll(std::span<Pending> pending, GpuTransfers& transfers);
  Status ReadEncoded(std::span<Pending> pending, GpuEncoder& encoder, GpuTransfers& transfers);

  CudaDevice& device_;
  const GpuArenasOptions options_;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<Arena>> arenas_;
  uint64_t allocated_bytes_ = 0;
  std::vector<std::unique_ptr<GpuTransfers>> idle_;
  uint32_t lent_ = 0;
  std::unique_ptr<GpuEncoder> encoder_;  ///< null while somebody has it, or where there is none
};

}  // namespace kvtier
