#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tiers/cuda/gpu_arenas.h"
#include "tiers/job.h"

namespace kvtier {

/// Jobs whose bytes cross the bus together, and the bytes of their places from which on no more join.
inline constexpr size_t kMaxGpuJobs = 16;
inline constexpr uint64_t kMaxGpuJobsBytes = uint64_t{32} << 20;

/// Does jobs of a tier on a GPU, several at once: what leaves it is encoded in one launch, and what comes to
/// it goes up in one go. Threads: single-owner.
class GpuJobs {
 public:
  /// Calls; what escapes from it becomes kInternal.
  using Guard = std::function<Status(const std::function<Status()>&)>;
  GpuJobs(CudaDevice& device, GpuArenas& arenas, Guard guard);

  /// Gives every job its completion, in `ended`. What a job held, such as staged memory, is free then.
  void Run(std::vector<Job>& jobs, std::vector<Completion>& ended, LayerCrew* crew);
  /// Of the larger of the job's places.
  static uint64_t Bytes(const Job& job);
  /// Gives buffers back.
  void Trim();

 private:
  struct Lane {
    const MoveOrder* order = nullptr;  ///< null: not a move
    Completion completion;
    std::vector<Medium::PartRead> reads;
    MoveWrites writes;
  };
  void Read(std::span<Lane> lanes);
  void Build(Lane& lane, LayerCrew* crew);
  void Write(std::span<Lane> lanes);
  Status Other(const Job& job, MoveOutcome& outcome);

  CudaDevice& device_;
  GpuArenas& arenas_;
  const Guard guard_;
  const std::unique_ptr<BlockIo> memory_io_;  ///< for media that copy and need none
  MoveScratch scratch_;
  std::array<AlignedBuffer, kMaxGpuJobs> bounces_;
  std::array<MoveWrites, kMaxGpuJobs> writes_;
};

}  // namespace kvtier
