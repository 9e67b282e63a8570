#include "kernels/batch_encode.h"
#include "kernels/cuda/launch_team.cuh"

namespace kvtier::cuda {
namespace {

extern __shared__ std::byte shared_scratch[];

__global__ void __launch_bounds__(kBatchLanes, 4) RequantizePlanesKernel(RequantizeBatchArgs args) {
  RequantizePlanesBatch<true>(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes, 2) RequantizePlanesFromAnyKernel(RequantizeBatchArgs args) {
  RequantizePlanesBatch<false>(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes) MeasureRequantizedKernel(RequantizeBatchArgs args) {
  MeasureRequantizedBatch(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes, 4) RequantizeKv8Kernel(RequantizeBatchArgs args) {
  RequantizeKv8Batch(CudaTeam(shared_scratch), args);
}

}  // namespace

LaunchError LaunchRequantize(const RequantizeBatchArgs& batch, StreamHandle stream) {
  const TeamLauncher launcher{
      .shape = RequantizeBatchLaunch(batch), .codings = batch.codings, .stream = stream};
  return launcher.Run(batch, {{LayerCoding::kPlanes, RequantizePlanesKernel},
                              {LayerCoding::kPlanes, RequantizePlanesFromAnyKernel},
                              {LayerCoding::kPlanes, MeasureRequantizedKernel},
                              {LayerCoding::kKv8, RequantizeKv8Kernel}});
}

}  // namespace kvtier::cuda
