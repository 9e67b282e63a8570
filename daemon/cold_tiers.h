#pragma once

#include <memory>
#include <string>

#include "daemon/config/config.h"
#include "monitoring/metrics.h"
#include "tiers/cold_store.h"

namespace kvtier {

/// A cold tier that is open, and what it held.
struct ColdTier {
  std::unique_ptr<ColdStore> store;
  ColdRecovery recovery;
  std::string description;  ///< of its medium, for people
};

/// Whether the memory of a CXL tier is on this machine. Errors: kNotFound; others when it is, but cannot be
/// used.
Status FindCxl(const TierConfig& tier);

/// Opens the store of a cold tier, reads back what it holds, and tells the log. Sets the tier's metrics and
/// those of recovery. Errors: of the stores, one clear line each.
Result<ColdTier> OpenColdTier(const TierConfig& tier, TierId id, Metrics& metrics);

}  // namespace kvtier
