#include "client/src/remove.h"

#include <memory>

#include "client/src/query.h"
#include "client/src/slices.h"

namespace kvtier::client {

Status RemoveBlocks(Client& client, const Model& model, std::span<const kvtier_block_ref> refs,
                    uint64_t& removed, TimePoint deadline) {
  return client.OnConnection(deadline, [&](const std::shared_ptr<Connection>& connection) -> Status {
    KVTIER_ASSIGN(const uint32_t remote_model, connection->RemoteModel(model, deadline));
    v1::RemoveRequest request;
    request.set_session_token(connection->token());
    request.set_model(remote_model);
    v1::RemoveReply reply;
    if (refs.empty()) {
      request.set_whole_namespace(true);
      KVTIER_TRY(connection->rpc().Call(request, reply, deadline));
      removed = reply.removed();
      return Status::Ok();
    }
    return ForEachSlice(*connection, refs, [&](std::span<const kvtier_block_ref> slice) -> Status {
      request.set_keys(PackKeys(slice));
      KVTIER_TRY(connection->rpc().Call(request, reply, deadline));
      removed += reply.removed();
      return Status::Ok();
    });
  });
}

}  // namespace kvtier::client
