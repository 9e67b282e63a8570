#pragma once

#include <cstdint>
#include <span>

#include "client/src/client.h"
#include "client/src/model.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// Removes blocks, or with no `refs` all of the model; adds to `removed` how many there were, whatever the
/// result. Errors: those of the connection.
Status RemoveBlocks(Client& client, const Model& model, std::span<const kvtier_block_ref> refs,
                    uint64_t& removed, TimePoint deadline);

}  // namespace kvtier::client
