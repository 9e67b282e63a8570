#include "client/src/lookup.h"

#include <algorithm>
#include <utility>

namespace kvtier::client {
namespace {

kvtier_match MatchFromWire(char byte) {
  const auto value = static_cast<uint8_t>(byte);
  return {.precision = static_cast<kvtier_precision>(value >> 4), .tier = static_cast<uint32_t>(value & 15)};
}

}  // namespace

Result<LookupOutcome> LookupOn(Connection& connection, uint32_t remote_model, const Query& query,
                               TimePoint deadline) {
  const size_t limit = connection.welcome().limits().keys_per_call();
  LookupOutcome outcome;
  outcome.run.reserve(query.full.size());
  for (size_t asked = 0;;) {
    const size_t count = std::min(limit, query.full.size() - asked);
    v1::LookupRequest request;
    request.set_session_token(connection.token());
    request.set_model(remote_model);
    request.set_parent(std::string(query.ParentOf(asked).AsStringView()));
    request.set_keys(KeysToAsk(query, query.full.subspan(asked, count)));
    v1::LookupReply reply;
    KVTIER_TRY(connection.rpc().Call(request, reply, deadline));
    if (!RunCounts(query)) reply.clear_run();
    if (reply.run().size() > count)
      return Status(Code::kInternal, "the daemon matched more blocks than it was asked for");
    std::transform(reply.run().begin(), reply.run().end(), std::back_inserter(outcome.run), MatchFromWire);
    asked += count;
    if (reply.run().size() < count || asked == query.full.size()) {
      outcome.tails.assign(std::make_move_iterator(reply.mutable_tails()->begin()),
                           std::make_move_iterator(reply.mutable_tails()->end()));
      return outcome;
    }
  }
}

Status Lookup(Client& client, const Model& model, const Query& query, TimePoint deadline,
              LookupOutcome& outcome) {
  return client.OnConnection(deadline, [&](const std::shared_ptr<Connection>& connection) -> Status {
    KVTIER_ASSIGN(const uint32_t remote_model, connection->RemoteModel(model, deadline));
    Result<LookupOutcome> found = LookupOn(*connection, remote_model, query, deadline);
    if (!found.ok()) return found.status();
    outcome = std::move(found).value();
    return Status::Ok();
  });
}

}  // namespace kvtier::client
