#pragma once

#include <memory>
#include <vector>

#include "daemon/config/config.h"
#include "tiers/cuda/gpu_tier.h"

namespace kvtier {

/// Says where the hot tier is, once, and opens the GPU that it is on; null where it is in host memory. One
/// that was to be on a GPU becomes one there, with a warning, where the GPU is not to be had: of at most half
/// of what the other host tiers leave of `memory_bytes`, since its capacity was meant for a GPU. `workers`
/// are those of each cold tier. The clock outlives the GPU's tier.
std::unique_ptr<GpuTier> PlaceHotTier(std::vector<TierConfig>& tiers, uint64_t memory_bytes, uint32_t workers,
                                      uint32_t layer_helpers, const Clock& clock);

}  // namespace kvtier
