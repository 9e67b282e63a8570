#include "tiers/cuda/gpu.h"

namespace kvtier {

Result<GpuInfo> FindGpu(uint32_t /*ordinal*/) {
  return Status(Code::kUnimplemented, "built without CUDA");
}

}  // namespace kvtier
