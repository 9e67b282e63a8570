#pragma once

#include <vector>

#include "daemon/config/config.h"

namespace kvtier {

/// Says where the hot tier is, once. One on a GPU becomes one in host memory, with a warning, where there is
/// no GPU or this version cannot use it: of at most half of what the other host tiers leave of
/// `memory_bytes`, since its capacity was meant for a GPU.
void PlaceHotTier(std::vector<TierConfig>& tiers, uint64_t memory_bytes);

}  // namespace kvtier
