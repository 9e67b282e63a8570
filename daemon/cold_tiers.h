#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/service/session_server.h"
#include "monitoring/metrics.h"
#include "tiers/cxl_store.h"

namespace kvtier {

/// The memory of a CXL tier, for clients of its tenant.
struct SharedMemory {
  UniqueFd descriptor;  ///< to read only
  uint64_t bytes = 0;   ///< to be mapped
  CxlStore* store = nullptr;
};

/// A cold tier that is open, and what it held.
struct ColdTier {
  std::unique_ptr<ColdStore> store;
  ColdRecovery recovery;
  std::string description;  ///< of its medium, for people
  std::string tenant;       ///< whose blocks alone it takes; empty: anybody's
  std::optional<SharedMemory> shared;
};

/// Whether the memory of a CXL tier is on this machine. Errors: kNotFound; others when it is, but cannot be
/// used.
Status FindCxl(const TierConfig& tier);

/// Opens the store of a cold tier, reads back what it holds, and tells the log. Sets the tier's metrics and
/// those of recovery. Errors: of the stores, one clear line each.
Result<ColdTier> OpenColdTier(const TierConfig& tier, TierId id, Metrics& metrics);

/// What sessions are offered of the tiers that are open, by tier; `tiers` are their sections.
std::vector<SharedStore> SharedStores(const std::vector<TierConfig>& tiers,
                                      const std::vector<ColdTier>& opened);

}  // namespace kvtier
