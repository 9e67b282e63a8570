#include "client/src/tickets.h"

#include <string>

#include "client/src/layer_fetch.h"
#include "client/src/progress.h"

namespace kvtier::client {
namespace {

Status TooFew(size_t have) {
  return Status(Code::kOutOfRange, std::to_string(have) + " blocks, more than results has room for");
}

Status WaitFetch(LayerFetch& fetch, TimePoint deadline) {
  if (!fetch.WaitLayer(fetch.last_layer(), deadline))
    return Status(Code::kDeadlineExceeded, "the fetch is still under way");
  return Status::Ok();
}

Status FirstFailure(LayerFetch& fetch) {
  std::vector<kvtier_block_result> results(fetch.blocks());
  fetch.Results(fetch.last_layer(), results);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].code != KVTIER_OK)
      return Status(static_cast<Code>(results[i].code), "block " + std::to_string(i) + " was not fetched");
  }
  return Status::Ok();
}

Status FirstFailure(const std::vector<kvtier_put_result>& moves) {
  for (const kvtier_put_result& move : moves) {
    if (move.code != KVTIER_OK)
      return Status(static_cast<Code>(move.code), "a part of the prefetch did not end in time");
  }
  return Status::Ok();
}

}  // namespace

Status WaitTicket(Client& client, uint64_t ticket, TimePoint deadline, size_t room,
                  std::vector<kvtier_put_result>& results) {
  KVTIER_ASSIGN(const Ticket found, client.FindTicket(ticket));
  if (found.kind == Ticket::Kind::kFetch) {
    KVTIER_TRY(WaitFetch(*found.fetch, deadline));
    client.DropTicket(ticket);
    return FirstFailure(*found.fetch);
  }
  if (!found.connection->alive()) {
    client.DropTicket(ticket);
    return Status(Code::kStale, "the session of the ticket has ended");
  }
  if (!found.progress->WaitUntil(deadline))
    return Status(Code::kDeadlineExceeded, "the ticket is still under way");
  std::vector<kvtier_put_result> outcomes = found.progress->results();
  if (found.kind == Ticket::Kind::kPrefetch) {
    client.DropTicket(ticket);
    return FirstFailure(outcomes);
  }
  if (outcomes.size() > room) return TooFew(outcomes.size());
  results = std::move(outcomes);
  client.DropTicket(ticket);
  return Status::Ok();
}

Status WaitLayer(Client& client, uint64_t ticket, uint32_t layer, TimePoint deadline,
                 std::span<kvtier_block_result> results, size_t& count) {
  KVTIER_ASSIGN(const Ticket found, client.FindTicket(ticket));
  if (found.kind != Ticket::Kind::kFetch)
    return Status(Code::kInvalidArgument, "the ticket is not that of a fetch");
  LayerFetch& fetch = *found.fetch;
  count = fetch.blocks();
  if (layer < fetch.layers().first || layer > fetch.last_layer())
    return Status(Code::kInvalidArgument, "the layer is outside the fetch's");
  if (results.size() < count) return TooFew(count);
  if (!fetch.WaitLayer(static_cast<uint16_t>(layer), deadline))
    return Status(Code::kDeadlineExceeded, "the layer is still under way");
  fetch.Results(static_cast<uint16_t>(layer), results);
  return Status::Ok();
}

Status CancelTicket(Client& client, uint64_t id, TimePoint deadline) {
  KVTIER_ASSIGN(const Ticket ticket, client.FindTicket(id));
  if (ticket.kind == Ticket::Kind::kFetch) {
    ticket.fetch->Cancel();
    return Status::Ok();
  }
  if (!ticket.connection->alive()) return Status(Code::kStale, "the session of the ticket has ended");
  for (const uint64_t remote : ticket.remote_tickets) {
    v1::CancelRequest request;
    request.set_session_token(ticket.connection->token());
    request.set_ticket(remote);
    v1::CancelReply reply;
    const Status cancelled = ticket.connection->rpc().Call(request, reply, deadline);
    // A part that is over already has nothing to cancel.
    if (!cancelled.ok() && cancelled.code() != Code::kStale && cancelled.code() != Code::kNotFound)
      return cancelled;
  }
  return Status::Ok();
}

}  // namespace kvtier::client
