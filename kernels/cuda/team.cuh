#pragma once

#include "kernels/team.h"

namespace kvtier {

/// The threads of one CUDA block, with dynamic shared memory as scratch.
class CudaTeam {
 public:
  static constexpr uint32_t kLaneWidth = 1;
  static constexpr bool kIsCuda = true;

  __device__ explicit CudaTeam(std::byte* shared) : shared_(shared) {}

  __device__ uint32_t block() const { return blockIdx.x; }
  __device__ uint32_t rank() const { return threadIdx.x; }
  __device__ uint32_t size() const { return blockDim.x; }
  __device__ uint32_t warp_size() const { return 32; }
  __device__ std::byte* scratch() const { return shared_; }
  __device__ void sync() const { __syncthreads(); }
  template <typename Value>
  __device__ Value shfl_xor(Value value, uint32_t mask) const {
    return __shfl_xor_sync(0xffffffff, value, static_cast<int>(mask));
  }

 private:
  std::byte* shared_;
};
static_assert(Team<CudaTeam>);

}  // namespace kvtier
