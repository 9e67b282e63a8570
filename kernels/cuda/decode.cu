#include "kernels/batch_decode.h"
#include "kernels/cuda/launch_team.cuh"

namespace kvtier::cuda {
namespace {

extern __shared__ std::byte shared_scratch[];

__global__ void __launch_bounds__(kBatchLanes, 4) DecodePlanesKernel(DecodeBatchArgs args) {
  DecodePlanesBatch<true>(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes) DecodePlanesToAnyKernel(DecodeBatchArgs args) {
  DecodePlanesBatch<false>(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes) DecodeKv8Kernel(DecodeBatchArgs args) {
  DecodeKv8Batch(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes) DecodeRawKernel(DecodeBatchArgs args) {
  DecodeRawBatch(CudaTeam(shared_scratch), args);
}

}  // namespace

LaunchError LaunchDecode(const DecodeBatchArgs& batch, StreamHandle stream) {
  const TeamLauncher launcher{.shape = DecodeBatchLaunch(batch), .codings = batch.codings, .stream = stream};
  return launcher.Run(batch, {{LayerCoding::kPlanes, DecodePlanesKernel},
                              {LayerCoding::kPlanes, DecodePlanesToAnyKernel},
                              {LayerCoding::kKv8, DecodeKv8Kernel},
                              {LayerCoding::kRaw, DecodeRawKernel}});
}

}  // namespace kvtier::cuda
