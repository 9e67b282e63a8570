#include "tiers/cuda/gpu.h"

#include <cuda_runtime_api.h>

#include <string>

#include "tiers/cuda/cuda_status.h"

namespace kvtier {

Result<GpuInfo> FindGpu(uint32_t ordinal) {
  int count = 0;
  KVTIER_TRY(StatusFromCuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount").WithContext("no GPU"));
  if (ordinal >= static_cast<uint32_t>(count)) {
    return Status(Code::kNotFound,
                  "no GPU " + std::to_string(ordinal) + ": there are " + std::to_string(count));
  }
  GpuInfo info{.ordinal = ordinal};
  const auto attribute = [&](int& value, cudaDeviceAttr which) {
    return StatusFromCuda(cudaDeviceGetAttribute(&value, which, static_cast<int>(ordinal)),
                          "cudaDeviceGetAttribute");
  };
  KVTIER_TRY(attribute(info.compute_major, cudaDevAttrComputeCapabilityMajor));
  KVTIER_TRY(attribute(info.compute_minor, cudaDevAttrComputeCapabilityMinor));
  KVTIER_TRY(attribute(info.multiprocessors, cudaDevAttrMultiProcessorCount));
  return info;
}

}  // namespace kvtier
