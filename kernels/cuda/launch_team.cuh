#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "kernels/batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/team.cuh"
#include "kernels/team.h"

namespace kvtier::cuda {

/// A kernel, and of which coding it does the items.
template <typename Args>
struct CodingKernel {
  LayerCoding coding;
  void (*kernel)(Args);
};

/// Launches kernels over one batch, one after the other on one stream.
struct TeamLauncher {
  LaunchShape shape;
  uint32_t lanes = kBatchLanes;
  uint32_t codings = kAllCodings;
  StreamHandle stream = nullptr;

  /// Those whose coding the batch may have; none without items. Stops at the first error.
  template <typename Args>
  LaunchError Run(const Args& args, std::initializer_list<CodingKernel<Args>> kernels) const {
    if (shape.blocks == 0) return cudaSuccess;
    for (const CodingKernel<Args>& one : kernels) {
      if ((codings & CodingBit(one.coding)) == 0) continue;
      one.kernel<<<shape.blocks, lanes, shape.scratch_bytes, static_cast<cudaStream_t>(stream)>>>(args);
      if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
};

}  // namespace kvtier::cuda
