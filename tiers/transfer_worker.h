#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "monitoring/metrics.h"
#include "tiers/arena_store.h"
#include "tiers/base/block_io.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/job.h"
#include "tiers/layer_crew.h"
#include "tiers/transfer_stream.h"

namespace kvtier {

struct TransferWorkersOptions {
  uint32_t count = 1;
  /// Threads beside the workers that take layers off one that has a large block while no other block waits.
  uint32_t layer_helpers = 0;
  BlockIoKind io = BlockIoKind::kAuto;
  /// Called after each completion was queued, on a worker thread: wakes the engine. Must not block or throw.
  std::function<void()> on_completion = {};
};

/// The threads that move blocks. Every job popped gets exactly one completion, also one that ran into an
/// exception: that is counted (worker_restarts), the job answers kInternal, and the thread goes on with fresh
/// I/O and scratch. Threads: Start, Stop and the destructor on one thread; OldestProgress on any.
class TransferWorkers {
 public:
  /// The queues, the store and the metrics outlive the workers. The completion queue should hold all jobs in
  /// flight; when it is full a worker waits. Errors: kInvalidArgument (no or too many workers).
  static Result<std::unique_ptr<TransferWorkers>> Make(TransferWorkersOptions options,
                                                       BoundedQueue<Job>& jobs,
                                                       BoundedQueue<Completion>& completions,
                                                       ArenaStore& arenas, Metrics& metrics);
  ~TransferWorkers();

  /// Errors: kResourceExhausted when the system gives no thread; kInvalidArgument (too many helpers).
  Status Start();
  /// Finishes the jobs that are queued, then joins. No more jobs may be pushed meanwhile. Idempotent.
  void Stop();

  /// When the least lively worker last took, finished or looked for a job: older than a few seconds means
  /// that it is stuck in one.
  TimePoint OldestProgress() const;

 private:
  struct Worker {
    std::thread thread;
    std::atomic<TimePoint> last_progress{TimePoint{}};
  };
  struct Tools {
    std::unique_ptr<BlockIo> io;
    MoveScratch scratch;
    bool broken = false;  ///< something escaped from what used them
  };

  TransferWorkers(TransferWorkersOptions options, BoundedQueue<Job>& jobs,
                  BoundedQueue<Completion>& completions, ArenaStore& arenas, Metrics& metrics);
  void Run(Worker& worker);
  TransferStream::Callbacks StreamCallbacks(Tools& tools, Worker& worker);
  Status Supervised(Tools& tools, const std::function<Status()>& call);
  Completion Execute(Job job, Tools& tools);
  Status Prepare(Tools& tools);
  Status Perform(const Job& job, Tools& tools, MoveOutcome& outcome);
  void CountEncoding(const MoveOutcome& outcome);
  void Complete(std::span<Completion> completions, Worker& worker);

  const TransferWorkersOptions options_;
  TransferStream::Workers streams_;
  std::unique_ptr<LayerCrew> crew_;
  BoundedQueue<Job>& jobs_;
  BoundedQueue<Completion>& completions_;
  ArenaStore& arenas_;
  Metrics& metrics_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> stopping_{false};
};

}  // namespace kvtier
