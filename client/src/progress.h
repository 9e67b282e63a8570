#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "kvtier/kvtier.h"
#include "tiers/base/clock.h"

namespace kvtier::client {

/// What has become of the parts of a ticket: the blocks of a put, or the calls of a prefetch. Threads: any.
class Progress {
 public:
  explicit Progress(size_t parts, kvtier_durability durability = KVTIER_MEMORY);

  void Set(size_t part, const kvtier_put_result& result);
  void BatchStarted();
  void BatchEnded();
  /// Once, after the last BatchStarted: `ended` runs when no batch is under way any more, maybe at once. On
  /// the thread that ends the last one; it must neither block nor call this object.
  void OnEnd(std::function<void()> ended);
  /// False when batches are still under way at `deadline`.
  bool WaitUntil(TimePoint deadline);
  std::vector<kvtier_put_result> results() const;
  kvtier_durability durability() const { return durability_; }

 private:
  const kvtier_durability durability_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<kvtier_put_result> results_;
  uint32_t under_way_ = 0;
  std::function<void()> on_end_;
};

}  // namespace kvtier::client
