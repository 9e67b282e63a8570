#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "monitoring/metrics.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/cuda/gpu_jobs.h"
#include "tiers/layer_crew.h"

namespace kvtier {

/// The thread of one GPU's tier. Every job popped gets exactly one completion, as with TransferWorkers.
/// Threads: Start, Stop and the destructor on one thread; last_progress on any.
class GpuWorker {
 public:
  struct Deps {
    CudaDevice& device;
    GpuArenas& arenas;
    BoundedQueue<Job>& jobs;
    BoundedQueue<Completion>& completions;
    Metrics& metrics;
  };
  /// `on_completion` wakes the engine, on this thread; must not block or throw.
  GpuWorker(Deps deps, uint32_t layer_helpers, std::function<void()> on_completion);
  ~GpuWorker();

  /// Errors: kResourceExhausted when the system gives no thread; kInvalidArgument (too many helpers).
  Status Start();
  /// Finishes the jobs that are queued, then joins. Idempotent.
  void Stop();
  /// When it last took, finished or looked for a job.
  TimePoint last_progress() const { return last_progress_.load(); }

 private:
  void Run();
  Status Guard(const std::function<Status()>& call);

  const Deps deps_;
  const uint32_t layer_helpers_;
  const std::function<void()> on_completion_;
  std::unique_ptr<LayerCrew> crew_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<TimePoint> last_progress_{TimePoint{}};
};

}  // namespace kvtier
