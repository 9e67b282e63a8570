#pragma once

#include <cstdint>

#include "tiers/base/status.h"

namespace kvtier {

/// What is known of a GPU without using it.
struct GpuInfo {
  uint32_t ordinal = 0;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
};

/// Looks for GPU `ordinal`. Makes no context: takes none of its memory. Any thread.
/// Errors: kUnimplemented (built without CUDA), kUnavailable (no driver, no GPU), kNotFound (fewer GPUs).
Result<GpuInfo> FindGpu(uint32_t ordinal);

}  // namespace kvtier
