#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tiers/base/bounded_queue.h"
#include "tiers/base/doorbell.h"
#include "tiers/base/io_memory.h"
#include "tiers/job.h"

namespace kvtier {

/// Blocks that one worker has on their way to and from devices at once, and the bytes of their places there
/// from which on it takes no more: what a block for which somebody waits finds before it on the device.
inline constexpr size_t kMaxStreamJobs = 16;
inline constexpr uint64_t kMaxStreamBytes = uint64_t{3} << 20;

/// What ends at the same time is reported together, unless it took as long to copy as this much does.
inline constexpr uint64_t kMaxReportBytes = uint64_t{512} << 10;

/// Whether the job moves a block between memory and a device that takes requests, and nothing has to be made
/// ready there first: such jobs stream.
bool CanStream(const Job& job);

/// Jobs of a queue whose blocks are on their way at the same time: while the device works on some of them,
/// the worker encodes or copies others. Each taken gets one completion. Threads: single-owner.
class TransferStream final : public IoStream {
 public:
  /// By the worker's means.
  struct Callbacks {
    /// Calls; what escapes from it becomes kInternal.
    std::function<Status(const std::function<Status()>&)> guard;
    /// BuildMove. `alone`: there is nothing else to do.
    std::function<Status(const MoveOrder&, std::span<Medium::PartRead>, MoveWrites&, MoveOutcome&,
                         bool alone)>
        build;
    std::function<void(std::span<Completion>)> complete;  ///< must not throw
  };

  /// The workers that take from the queue.
  struct Workers {
    uint32_t count = 1;
    std::atomic<size_t> jobs_under_way{0};  ///< of all of them
  };

  /// One of `workers`.
  TransferStream(BoundedQueue<Job>& jobs, Workers& workers, Callbacks callbacks);
  ~TransferStream() override;

  /// Runs `first`, which can stream, and the jobs that come while any is on its way. Returns a job that was
  /// taken and cannot stream: it is the next.
  std::optional<Job> Run(Job first, BlockIo& io);
  /// Gives the buffers back.
  void Trim();

  IoRequest* Next() override;
  void Done(IoRequest& request) override;
  void AllDone() override { Report(); }
  int WakeDescriptor() const override { return bell_->fd(); }
  void Woken() override { bell_->Silence(); }

 private:
  struct Lane;

  size_t Share() const;
  bool Take();
  void Begin(Job job);
  Status StartReads(Lane& lane);
  Status StartWrites(Lane& lane);
  void Submit(Lane& lane, DeviceRequest& device);
  void End(Lane& lane);
  Status EndReads(Lane& lane);
  Status EndWrites(Lane& lane);
  void Report();
  Lane& FreeLane();

  BoundedQueue<Job>& jobs_;
  Workers& workers_;
  const Callbacks callbacks_;
  const std::shared_ptr<const Doorbell> bell_ = std::make_shared<const Doorbell>();  ///< for the next job
  const std::unique_ptr<BlockIo> memory_io_;  ///< for media that copy and need none
  const BlockIo* io_ = nullptr;               ///< that runs it
  IoMemory io_memory_;                        ///< for what fits in it on its way
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::deque<IoRequest*> ready_;   ///< to be submitted
  size_t busy_ = 0;                ///< lanes
  uint64_t bytes_ = 0;             ///< of the places of their jobs
  std::vector<Completion> ended_;  ///< to be reported, and the bytes of their places
  uint64_t ended_bytes_ = 0;
  TimePoint closes_{};  ///< when it takes no more, so that every request has time left
  std::optional<Job> next_;
};

}  // namespace kvtier
