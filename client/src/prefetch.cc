#include "client/src/prefetch.h"

#include <memory>
#include <vector>

#include "client/src/errors.h"
#include "client/src/progress.h"
#include "client/src/slices.h"

namespace kvtier::client {
namespace {

/// How long moves of a prefetch may take; the call itself returns when they are started.
constexpr uint32_t kPrefetchDeadlineMs = 60'000;

/// Learns from the daemon when the moves of each call have ended.
std::shared_ptr<Progress> FollowPrefetch(Connection& connection,
                                         const std::vector<uint64_t>& remote_tickets) {
  auto progress = std::make_shared<Progress>(remote_tickets.size());
  for (size_t i = 0; i < remote_tickets.size(); ++i) {
    v1::WaitTicketRequest request;
    request.set_session_token(connection.token());
    request.set_ticket(remote_tickets[i]);
    request.set_deadline_ms(kPrefetchDeadlineMs);
    progress->BatchStarted();
    const TimePoint deadline = SteadyClock().Now() + std::chrono::milliseconds(kPrefetchDeadlineMs);
    connection.rpc().WaitTicketAsync(
        std::move(request), deadline, [progress, i](const Status& status, const v1::PutReply& /*empty*/) {
          // The daemon forgets the oldest tickets that have ended.
          const Code code = status.code() == Code::kStale ? Code::kOk : status.code();
          progress->Set(i, {.code = ToC(code), .precision = KVTIER_PRECISION_ANY, .tier = 0});
          progress->BatchEnded();
        });
  }
  return progress;
}

}  // namespace

Status Prefetch(Client& client, const Model& model, const Query& query, uint32_t tier, TimePoint deadline,
                Ticket& ticket, uint32_t& started) {
  return client.OnConnection(deadline, [&](const std::shared_ptr<Connection>& connection) -> Status {
    KVTIER_ASSIGN(const uint32_t remote_model, connection->RemoteModel(model, deadline));
    ticket = {.kind = Ticket::Kind::kPrefetch,
              .connection = connection,
              .progress = nullptr,
              .fetch = nullptr,
              .remote_tickets = {}};
    const Status sent =
        ForEachSlice(*connection, query.refs, [&](std::span<const kvtier_block_ref> slice) -> Status {
          v1::PrefetchRequest request;
          request.set_session_token(connection->token());
          request.set_model(remote_model);
          request.set_ticket(connection->NextId());
          request.set_tier(tier);
          request.set_keys(PackKeys(slice));
          request.set_deadline_ms(kPrefetchDeadlineMs);
          v1::PrefetchReply reply;
          KVTIER_TRY(connection->rpc().Call(request, reply, deadline));
          ticket.remote_tickets.push_back(request.ticket());
          started += reply.started();
          return Status::Ok();
        });
    // Slices that were started go on, whatever became of the others.
    ticket.progress = FollowPrefetch(*connection, ticket.remote_tickets);
    return sent;
  });
}

}  // namespace kvtier::client
