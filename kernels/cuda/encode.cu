#include "kernels/batch_encode.h"

#include "kernels/cuda/launch_team.cuh"

namespace kvtier::cuda {
namespace {

extern __shared__ std::byte shared_scratch[];

__global__ void __launch_bounds__(kBatchLanes, 4) EncodePlanesKernel(EncodeBatchArgs args) {
  EncodePlanesBatch<true>(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes) EncodePlanesFromAnyKernel(EncodeBatchArgs args) {
  EncodePlanesBatch<false>(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes) MeasurePlanesKernel(EncodeBatchArgs args) {
  MeasurePlanesBatch(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes, 4) EncodeKv8Kernel(EncodeBatchArgs args) {
  EncodeKv8Batch(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes, 8) GatherRawKernel(EncodeBatchArgs args) {
  GatherRawBatch(CudaTeam(shared_scratch), args);
}

}  // namespace

LaunchError LaunchEncode(const EncodeBatchArgs& batch, StreamHandle stream) {
  const TeamLauncher launcher{.shape = EncodeBatchLaunch(batch), .codings = batch.codings, .stream = stream};
  return launcher.Run(batch, {{LayerCoding::kPlanes, EncodePlanesKernel},
                              {LayerCoding::kPlanes, EncodePlanesFromAnyKernel},
                              {LayerCoding::kPlanes, MeasurePlanesKernel},
                              {LayerCoding::kKv8, EncodeKv8Kernel},
                              {LayerCoding::kRaw, GatherRawKernel}});
}

}  // namespace kvtier::cuda
