#include "tiers/cuda/checksum.h"

#include "kernels/cuda/launch_team.cuh"

namespace kvtier::cuda {
namespace {

extern __shared__ std::byte shared_scratch[];

__global__ void __launch_bounds__(kBatchLanes) ChecksumKernel(ChecksumBatchArgs args) {
  ChecksumBatch(CudaTeam(shared_scratch), args);
}

}  // namespace

LaunchError LaunchChecksum(const ChecksumBatchArgs& batch, StreamHandle stream) {
  const TeamLauncher launcher{.shape = ChecksumBatchLaunch(batch), .stream = stream};
  return launcher.Run(batch, {{LayerCoding::kRaw, ChecksumKernel}});
}

}  // namespace kvtier::cuda
