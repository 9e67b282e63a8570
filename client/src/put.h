#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "client/src/client.h"
#include "client/src/query.h"
#include "client/src/view.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// What has become of the blocks of one put. Threads: any.
class PutProgress {
 public:
  PutProgress(size_t blocks, kvtier_durability durability);

  void Set(size_t block, const kvtier_put_result& result);
  void BatchStarted();
  void BatchEnded();
  /// False when batches are still under way at `deadline`.
  bool WaitUntil(TimePoint deadline);
  std::vector<kvtier_put_result> results() const;
  kvtier_durability durability() const { return durability_; }

  /// Blocks [first, first + count) went under one ticket of the daemon's.
  struct Batch {
    uint64_t remote_ticket = 0;
    std::vector<size_t> blocks;
  };
  void AddBatch(Batch batch);
  std::vector<Batch> batches() const;

 private:
  const kvtier_durability durability_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<kvtier_put_result> results_;
  std::vector<Batch> batches_;
  uint32_t under_way_ = 0;
};

struct PutOptions {
  kvtier_durability durability = KVTIER_MEMORY;
  kvtier_precision floor = KVTIER_PRECISION_ANY;
  uint32_t priority = 0;
  uint32_t ttl_ms = 0;
};

/// Stages the blocks that are not present and sends them off, batch by batch. `ticket` is set whenever
/// anything was staged or found present. Errors: kResourceExhausted and kDeadlineExceeded when some blocks
/// were not taken.
Status Put(Client& client, const std::shared_ptr<const Model>& model, const Query& query, const View& source,
           const PutOptions& options, TimePoint deadline, uint64_t& ticket);

/// Until every block has its outcome. Errors: kStale, kDeadlineExceeded (then the ticket can be waited for
/// again).
Status WaitPut(Client& client, uint64_t ticket, TimePoint deadline, std::vector<kvtier_put_result>& results);

}  // namespace kvtier::client
