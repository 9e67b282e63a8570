#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kvtier/kvtier.h"
#include "tiers/base/clock.h"

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

 private:
  const kvtier_durability durability_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<kvtier_put_result> results_;
  uint32_t under_way_ = 0;
};

}  // namespace kvtier::client
