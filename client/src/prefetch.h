#pragma once

#include <cstdint>

#include "client/src/client.h"
#include "client/src/model.h"
#include "client/src/query.h"

namespace kvtier::client {

/// Starts moves of the query's blocks up to `tier`. `ticket` ends when they have; `started` is how many were
/// begun. After an error those go on all the same. Errors: those of the connection.
Status Prefetch(Client& client, const Model& model, const Query& query, uint32_t tier, TimePoint deadline,
                Ticket& ticket, uint32_t& started);

}  // namespace kvtier::client
