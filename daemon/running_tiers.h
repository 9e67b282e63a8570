#pragma once

#include <vector>

#include "daemon/config/config.h"
#include "tiers/base/status.h"

namespace kvtier {

/// CXL memory is optional: tiers whose memory is not on this machine go, with a warning.
void LeaveAbsentTiersOut(std::vector<TierConfig>& tiers);

/// Clients read from host memory: where no tier is there, a small one is made in which what comes from a GPU
/// or a cold tier lands, and what is put where nothing is above it.
void AddLandingTier(std::vector<TierConfig>& tiers, uint64_t landing_bytes);

/// Errors: kInvalidArgument when the host tiers do not fit into `memory_bytes`.
Status CheckMemory(const std::vector<TierConfig>& tiers, uint64_t memory_bytes);

}  // namespace kvtier
