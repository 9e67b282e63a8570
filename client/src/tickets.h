#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/src/client.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// Until the ticket has ended. `results`: of a put by block; empty for others. Errors: kStale; the first
/// failure of a prefetch or fetch, whose ticket is gone then; kDeadlineExceeded and, for more than `room`
/// results, kOutOfRange: then it can be waited for again.
Status WaitTicket(Client& client, uint64_t ticket, TimePoint deadline, size_t room,
                  std::vector<kvtier_put_result>& results);

/// Until the layers of a fetch up to `layer` are done, or it has been cancelled. `count` becomes the number
/// of blocks. Errors: kStale; kInvalidArgument for a ticket that is none of a fetch, or a layer outside;
/// kDeadlineExceeded; kOutOfRange for more blocks than `results` has room for.
Status WaitLayer(Client& client, uint64_t ticket, uint32_t layer, TimePoint deadline,
                 std::span<kvtier_block_result> results, size_t& count);

/// Ends what can be ended; the ticket stays to be waited for. Once this has returned a fetch writes nothing
/// more. Errors: kStale; those of the connection.
Status CancelTicket(Client& client, uint64_t ticket, TimePoint deadline);

}  // namespace kvtier::client
