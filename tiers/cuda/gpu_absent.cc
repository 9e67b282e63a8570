#include "tiers/cuda/gpu.h"
#include "tiers/cuda/gpu_tier.h"

namespace kvtier {

Result<GpuInfo> FindGpu(uint32_t /*ordinal*/) {
  return Status(Code::kUnimplemented, "built without CUDA");
}

Result<std::unique_ptr<GpuTier>> GpuTier::Open(const GpuTierOptions& /*options*/, const Clock& /*clock*/) {
  return Status(Code::kUnimplemented, "built without CUDA");
}

}  // namespace kvtier
