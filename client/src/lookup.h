#pragma once

#include <memory>
#include <vector>

#include "client/src/client.h"
#include "client/src/query.h"

namespace kvtier::client {

struct LookupOutcome {
  std::vector<kvtier_match> run;     ///< the unbroken run of full blocks
  std::vector<v1::TailChild> tails;  ///< of the last block of the run
};

/// Looks the full blocks of the query up, in as many calls as the daemon's limit needs. Errors: those of the
/// connection.
Result<LookupOutcome> LookupOn(Connection& connection, uint32_t remote_model, const Query& query,
                               TimePoint deadline);

Status Lookup(Client& client, const Model& model, const Query& query, TimePoint deadline,
              LookupOutcome& outcome);

}  // namespace kvtier::client
