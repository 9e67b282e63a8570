#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "monitoring/metrics.h"
#include "tiers/base/block_io.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/job.h"

namespace kvtier {

/// Commits that came during a sync are served by the next one, up to this many at once. After a group of
/// several they wait a few milliseconds at most for more to come; one after another each is done as soon as
/// the device has it.
inline constexpr size_t kMaxCommitBatch = 256;

struct CommitterOptions {
  BlockIoKind io = BlockIoKind::kAuto;
  /// Called after completions were queued, on the committer thread: wakes the engine. Must not block or
  /// throw.
  std::function<void()> on_completion;
};
struct CommitterStore {
  TierId tier;
  ColdStore* store = nullptr;
};

/// The thread that makes cold records durable and forgets them, in the order of the jobs. Every job popped
/// gets exactly one completion, also one that ran into an exception: that is counted (worker_restarts), the
/// job answers kInternal, and the thread goes on with fresh I/O. A sync that fails fails the commits of its
/// segment only: that of a tail's segment costs the tails, not their blocks. Threads: Make, Start, Stop and
/// the destructor on one thread; LastProgress on any.
class Committer {
 public:
  /// Queues, stores and metrics outlive the committer. The completion queue should hold all jobs in flight;
  /// when it is full the committer waits.
  Committer(CommitterOptions options, std::vector<CommitterStore> stores, BoundedQueue<ColdJob>& jobs,
            BoundedQueue<Completion>& completions, Metrics& metrics);
  ~Committer();

  /// Errors: kResourceExhausted when the system gives no thread.
  Status Start();
  /// Finishes the jobs that are queued, then joins. No more jobs may be pushed meanwhile. Idempotent.
  void Stop();

  /// When it last took, finished or looked for a job: older than a few seconds means that it is stuck in one.
  TimePoint LastProgress() const { return last_progress_.load(); }

 private:
  void Run();
  std::vector<ColdJob> Gather(ColdJob first, std::optional<ColdJob>& next);
  void CommitAll(std::vector<ColdJob> batch);
  struct Unit;
  void CommitSegment(std::span<Unit> units);
  void ExecuteOne(const ColdJob& job);
  Status Perform(const ColdJob& job, BlockIo& io);
  Status Supervised(const std::function<Status(BlockIo&)>& work);
  Result<ColdStore*> Find(TierId tier) const;
  void CountMetadata();  ///< nobody else adds to those counters
  void Complete(std::span<Completion> completions);

  const CommitterOptions options_;
  const std::vector<CommitterStore> stores_;
  BoundedQueue<ColdJob>& jobs_;
  BoundedQueue<Completion>& completions_;
  Metrics& metrics_;
  std::unique_ptr<BlockIo> io_;  ///< made and used on the thread
  std::thread thread_;
  TimePoint last_commit_{};  ///< when the last group was done
  uint32_t last_group_ = 0;  ///< its jobs
  std::atomic<TimePoint> last_progress_{TimePoint{}};
  std::atomic<bool> stopping_{false};
};

}  // namespace kvtier
