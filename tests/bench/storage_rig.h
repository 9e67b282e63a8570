#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "monitoring/metrics.h"
#include "tests/bench/bench.h"
#include "tiers/committer.h"
#include "tiers/segment_allocator.h"
#include "tiers/transfer_worker.h"

namespace kvtier::bench {

/// What one run of jobs took.
struct StorageRun {
  double seconds = 0;
  double cpu_seconds = 0;  ///< of the whole process, user and system
  uint64_t bytes = 0;      ///< of records, as they stand on the device
  uint64_t commits = 0;    ///< groups of puts that were made durable by one sync each
  Samples latency_us;      ///< of single jobs, from push to completion

  double gbps() const { return static_cast<double>(bytes) / seconds / 1e9; }
  double cpu_seconds_per_gb() const { return cpu_seconds / (static_cast<double>(bytes) / 1e9); }
};

/// A cold store with the transfer workers and the committer of the daemon, without the engine: orders are the
/// caller's. Blocks are raw16, so that no encoder hides the device. Threads: single-owner. Owns everything
/// but the folder.
class StorageRig {
 public:
  struct Options {
    std::string folder;  ///< on the file system to measure; made where there is none
    uint64_t capacity_bytes = 0;
    uint64_t block_bytes =
        0;                 ///< of K and V: a multiple of 64 KiB; or 0 for the smallest block that there is
    uint32_t workers = 0;  ///< 0: as many as the daemon takes by default
  };
  /// Opens (or makes) the store. Errors: of the store.
  static Result<std::unique_ptr<StorageRig>> Make(const Options& options);
  ~StorageRig();

  /// Stores `count` new blocks with at most `depth` of them being written, and ends when all are committed.
  /// As in the daemon, commits run beside the writes, and latency is up to the commit.
  Result<StorageRun> Put(uint32_t count, uint32_t depth);
  /// The same over the first `count` stored blocks: as in segments that are used again once the tier is full,
  /// where the file system has no new extent to write down.
  Result<StorageRun> PutAgain(uint32_t count, uint32_t depth);
  /// Brings `count` stored blocks, picked at random, into host memory: read, verified, copied.
  Result<StorageRun> Get(uint32_t count, uint32_t depth);
  /// Get, one at a time and ahead of the writes, while as many stored blocks are being written again as the
  /// engine lets go down at once. Figures are of the reads.
  Result<StorageRun> GetWhileWriting(uint32_t count);

  uint64_t record_bytes() const { return record_bytes_; }
  bool direct_io() const { return store_->direct_io(); }
  uint32_t workers() const { return workers_count_; }

 private:
  explicit StorageRig(const Options& options);
  Status Start();
  MoveOrder OrderOf(uint32_t block) const;
  MoveOrder GetOrder(uint32_t block, uint32_t lane);
  Result<Completion> Await();
  MoveOrder PutOrder(uint32_t block) const;
  void Commit(uint32_t block, const Completion& written);
  Status PlaceMore(uint32_t count);
  Result<StorageRun> Write(uint32_t first, uint32_t count, uint32_t depth);

  const Options options_;
  const uint32_t workers_count_;
  BlockShape shape_;
  uint64_t image_bytes_ = 0;
  uint64_t record_bytes_ = 0;
  std::vector<std::byte> raw_;
  Metrics metrics_;
  ArenaStore arenas_;
  ArenaSpec arena_;
  std::unique_ptr<ColdStore> store_;
  std::unique_ptr<SegmentAllocator> allocator_;
  std::vector<Place> places_;  ///< of the stored blocks, by number
  std::atomic<uint64_t> commits_{0};
  BoundedQueue<Job> jobs_;
  BoundedQueue<ColdJob> cold_jobs_;
  BoundedQueue<Completion> completions_;
  std::unique_ptr<TransferWorkers> transfer_workers_;
  std::unique_ptr<Committer> committer_;
};

}  // namespace kvtier::bench
