#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/client.h"
#include "client/src/progress.h"
#include "client/src/query.h"
#include "client/src/view.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

struct PutOptions {
  kvtier_durability durability = KVTIER_MEMORY;
  kvtier_precision floor = KVTIER_PRECISION_ANY;
  uint32_t priority = 0;
  uint32_t ttl_ms = 0;
};

/// Stages the blocks that are not present and sends them off, batch by batch. `ticket` is set whenever
/// anything was staged or found present. Errors: kResourceExhausted and kDeadlineExceeded when some blocks
/// were not taken.
Status Put(Client& client, const std::shared_ptr<const Model>& model, const Query& query, const View& source,
           const PutOptions& options, TimePoint deadline, uint64_t& ticket);

}  // namespace kvtier::client
