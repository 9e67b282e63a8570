#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "client/src/checked_blocks.h"
#include "client/src/client.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// Where a block of a lease is.
struct LeasedBlock {
  kvtier_block_info info{};
  uint32_t arena = 0;
  uint32_t slot = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t slot_epoch = 0;
};

/// Damaged blocks of a lease that the daemon is told of.
inline constexpr size_t kMaxDamagedTold = 16;

/// Blocks pinned by the daemon. Threads: any. Expires by the clock of this side, which is never later than
/// the daemon's, so that every read sees the end in the same way.
class Lease {
 public:
  Lease(std::shared_ptr<Connection> connection, std::shared_ptr<const Model> model, uint64_t id)
      : connection(std::move(connection)), model(std::move(model)), id(id) {}

  const std::shared_ptr<Connection> connection;
  const std::shared_ptr<const Model> model;
  const uint64_t id;
  std::vector<LeasedBlock> blocks;  ///< fixed once the lease is handed out
  CheckedBlocks checked;            ///< those that attention has read

  /// Tells the daemon of block `index`, once the lease is released, when `status` says that its bytes are
  /// damaged. The first kMaxDamagedTold of them.
  void NoteIfDamaged(size_t index, const Status& status);
  /// Packed keys.
  std::string DamagedKeys() const;

  /// `asked` is the moment before the daemon was asked.
  void StartTtl(TimePoint asked, Duration ttl);
  /// Renews when more than half of the TTL is over. Errors: kStale once it has expired, or its session has
  /// ended.
  Status CheckAndRenew(TimePoint now);

 private:
  std::atomic<int64_t> ttl_ns_ = 0;
  std::atomic<int64_t> expires_ns_ = 0;
  mutable std::mutex mutex_;
  std::set<size_t> damaged_;  ///< indexes of blocks; under mutex_
};

struct AcquireOptions {
  kvtier_precision min_precision = KVTIER_PRECISION_ANY;
  uint32_t ttl_ms = 0;
  uint64_t max_block_bytes = 0;
};

struct Query;

/// Matches and pins. Errors: kNotFound and whatever else ended the run before its first block; those of the
/// connection.
Result<std::shared_ptr<Lease>> Acquire(Client& client, const std::shared_ptr<const Model>& model,
                                       const Query& query, const AcquireOptions& options, TimePoint deadline);
/// Errors: kStale when the daemon had ended it already; kDeadlineExceeded when it does not answer: then the
/// release goes on in the background.
Status Release(const Lease& lease, TimePoint deadline);

}  // namespace kvtier::client
