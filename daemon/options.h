#pragma once

#include <vector>

#include "daemon/cold_tiers.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine.h"
#include "daemon/service/session_server.h"
#include "tiers/cuda/gpu_tier.h"

namespace kvtier {

/// What the parts of the daemon are told of its configuration. Pure, but for who the process is.

/// `tiers` run, with their stores in `cold_tiers`; host tiers are in `host_memory`, one on a GPU in `gpu`.
EngineOptions EngineOptionsOf(const Config& config, const std::vector<TierConfig>& tiers,
                              const std::vector<ColdTier>& cold_tiers, Medium& host_memory, GpuTier* gpu);
SessionLimits SessionLimitsOf(const Config& config);
/// All but the boot id.
SessionServerOptions SessionOptionsOf(const Config& config);

}  // namespace kvtier
