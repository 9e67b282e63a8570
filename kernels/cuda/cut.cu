#include "kernels/batch_cut.h"
#include "kernels/cuda/launch_team.cuh"

namespace kvtier::cuda {
namespace {

extern __shared__ std::byte shared_scratch[];

__global__ void __launch_bounds__(kBatchLanes, 8) CutKernel(CutBatchArgs args) {
  CutBatch(CudaTeam(shared_scratch), args);
}

}  // namespace

LaunchError LaunchCut(const CutBatchArgs& batch, StreamHandle stream) {
  const TeamLauncher launcher{.shape = CutBatchLaunch(batch), .stream = stream};
  return launcher.Run(batch, {{LayerCoding::kPlanes, CutKernel}});
}

}  // namespace kvtier::cuda
