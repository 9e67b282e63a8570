#pragma once

#include <functional>
#include <memory>
#include <string>

#include "monitoring/metrics.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/base/clock.h"
#include "tiers/job.h"

namespace kvtier {

struct GpuTierOptions {
  uint32_t ordinal = 0;
  uint64_t capacity_bytes = 0;  ///< of its memory, all told
  uint32_t other_threads = 0;   ///< that read or write its blocks besides its own: those of cold tiers
  uint32_t layer_helpers = 0;   ///< threads that take layers of a large block off its own
};

/// A tier in the memory of one GPU, with the thread that works for it. Part of every build, so that one
/// program serves machines with and without GPUs. Threads: all but `medium` and `last_progress` on one.
class GpuTier {
 public:
  /// Makes the context on the device: only where a tier is to be there. The clock outlives the tier.
  /// Errors: kUnimplemented (built without CUDA), those of FindGpu and of the device.
  static Result<std::unique_ptr<GpuTier>> Open(const GpuTierOptions& options, const Clock& clock);
  virtual ~GpuTier() = default;

  struct Work {
    BoundedQueue<Job>& jobs;
    BoundedQueue<Completion>& completions;
    Metrics& metrics;
    std::function<void()> on_completion;  ///< wakes the engine
  };
  /// Errors: as GpuWorker.
  virtual Status Start(Work work) = 0;
  /// Finishes what is queued. Idempotent.
  virtual void Stop() = 0;

  /// Ok, or why the GPU is lost.
  virtual Status Usable() const = 0;
  virtual Medium& medium() = 0;
  virtual TimePoint last_progress() const = 0;
  struct Facts {
    uint64_t arena_bytes = 0;   ///< of the capacity: what is left for blocks
    uint64_t free_bytes = 0;    ///< of the GPU's memory, before the tier took any
    std::string description{};  ///< "gpu:0"
  };
  virtual const Facts& facts() const = 0;
};

}  // namespace kvtier
