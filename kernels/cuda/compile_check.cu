// The bodies for single layers, as nvcc sees them. Nothing launches these: what is checked is that one source
// serves both compilers.
#include "kernels/attend.h"
#include "kernels/attend_kv8.h"
#include "kernels/attend_rows.h"
#include "kernels/boost.h"
#include "kernels/cuda/team.cuh"
#include "kernels/dequantize.h"
#include "kernels/dequantize_kv8.h"
#include "kernels/quantize.h"
#include "kernels/quantize_kv8.h"

namespace kvtier {

extern __shared__ std::byte shared_scratch[];

__global__ void QuantizeKernel(QuantizeArgs args) {
  Quantize(CudaTeam(shared_scratch), args);
}
__global__ void DequantizeKernel(DequantizeArgs args) {
  Dequantize(CudaTeam(shared_scratch), args);
}
__global__ void QuantizeKv8Kernel(QuantizeKv8Args args) {
  QuantizeKv8(CudaTeam(shared_scratch), args);
}
__global__ void DequantizeKv8Kernel(DequantizeKv8Args args) {
  DequantizeKv8(CudaTeam(shared_scratch), args);
}
__global__ void GatherBoostKernel(GatherBoostArgs args) {
  GatherBoostBits(CudaTeam(shared_scratch), args);
}
__global__ void AttendPlanesKernel(AttendPlanesArgs args) {
  AttendPlanes(CudaTeam(shared_scratch), args);
}
__global__ void AttendKv8Kernel(AttendKv8Args args) {
  AttendKv8(CudaTeam(shared_scratch), args);
}
__global__ void AttendRowsKernel(AttendRowsArgs args) {
  AttendRows(CudaTeam(shared_scratch), args);
}

}  // namespace kvtier
