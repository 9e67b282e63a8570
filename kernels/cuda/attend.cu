#include "kernels/batch_attend.h"
#include "kernels/batch_combine.h"
#include "kernels/cuda/launch_team.cuh"

namespace kvtier::cuda {
namespace {

extern __shared__ std::byte shared_scratch[];

__global__ void __launch_bounds__(kBatchLanes, 2) AttendPlanesBatchKernel(AttendBatchArgs args) {
  AttendPlanesBatch(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes, 2) AttendKv8BatchKernel(AttendBatchArgs args) {
  AttendKv8Batch(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes, 2) AttendRawBatchKernel(AttendBatchArgs args) {
  AttendRawBatch(CudaTeam(shared_scratch), args);
}
__global__ void __launch_bounds__(kBatchLanes) CombineKernel(CombineBatchArgs args) {
  CombineBatch(CudaTeam(shared_scratch), args);
}

}  // namespace

LaunchError LaunchAttend(const AttendBatchArgs& batch, StreamHandle stream) {
  const TeamLauncher launcher{.shape = AttendBatchLaunch(batch), .codings = batch.codings, .stream = stream};
  return launcher.Run(batch, {{LayerCoding::kPlanes, AttendPlanesBatchKernel},
                              {LayerCoding::kKv8, AttendKv8BatchKernel},
                              {LayerCoding::kRaw, AttendRawBatchKernel}});
}

LaunchError LaunchCombine(const CombineBatchArgs& batch, StreamHandle stream) {
  const TeamLauncher launcher{.shape = CombineBatchLaunch(batch), .stream = stream};
  return launcher.Run(batch, {{LayerCoding::kPlanes, CombineKernel}});
}

}  // namespace kvtier::cuda
