#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/api_support.h"
#include "client/src/attend.h"
#include "client/src/fetch.h"
#include "client/src/layer_fetch.h"
#include "client/src/lease.h"
#include "client/src/lookup.h"
#include "client/src/progress.h"
#include "client/src/put.h"
#include "client/src/query.h"
#include "client/src/tickets.h"
#include "client/src/view.h"

namespace kvtier::client {
namespace {

/// How long moves of a prefetch may take; the call itself returns when they are started.
constexpr uint32_t kPrefetchDeadlineMs = 60'000;
/// A larger capacity is taken for this one.
constexpr size_t kMaxCompletionsPerCall = 4096;
/// More than any daemon puts into one lease: a count above it cannot be the size of the caller's results.
constexpr size_t kMaxLeaseBlocks = size_t{1} << 16;

uint64_t TokensOf(const kvtier_block_ref* refs, size_t count) {
  uint64_t tokens = 0;
  for (size_t i = 0; i < count; ++i) tokens += refs[i].tokens;
  return tokens;
}

Status FillLookupResult(const Query& query, const LookupOutcome& outcome, kvtier_match* matches,
                        kvtier_lookup_result& result) {
  if (matches != nullptr) std::copy(outcome.run.begin(), outcome.run.end(), matches);
  result.blocks = outcome.run.size();
  result.tokens = query.PositionOf(result.blocks) - query.refs[0].position;
  const std::optional<size_t> tail = ChooseTail(query, result.blocks, outcome.tails);
  if (tail.has_value()) result.tail_tokens = outcome.tails[*tail].tokens();
  result.tokens += result.tail_tokens;
  return Status::Ok();
}

Result<LayerRange> CheckLayers(const Model& model, uint32_t first, uint32_t count) {
  const uint32_t all = model.spec.layers;
  if (first >= all || count > all - first)
    return Status(Code::kInvalidArgument, "layers are outside the model's");
  return LayerRange{.first = static_cast<uint16_t>(first),
                    .count = static_cast<uint16_t>(count == 0 ? all - first : count)};
}

Status CheckPrecision(kvtier_precision precision) {
  if (v1::Precision_IsValid(precision)) return Status::Ok();
  return Status(Code::kInvalidArgument, "precision is unknown");
}

Status CheckBlocks(const Lease& lease, size_t first, size_t count) {
  const size_t held = lease.blocks.size();
  if (count > 0 && first < held && count <= held - first) return Status::Ok();
  return Status(Code::kInvalidArgument, "blocks are outside the lease's");
}

/// OK when every block is; else the first that is not.
Status FirstFailure(size_t first, std::span<const kvtier_block_result> results, const char* what) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].code != KVTIER_OK)
      return Status(static_cast<Code>(results[i].code), "block " + std::to_string(first + i) + what);
  }
  return Status::Ok();
}

/// Room for results of blocks of a lease, filled with "stale". Errors: kInvalidArgument.
Result<Handles::LeaseHandle> BeginResults(const kvtier_lease* lease, size_t first, size_t count,
                                          kvtier_block_result* results) {
  if (results == nullptr) return Status(Code::kInvalidArgument, "results is NULL");
  if (count > kMaxLeaseBlocks) return Status(Code::kInvalidArgument, "count is above what a lease can hold");
  Result<Handles::LeaseHandle> handle = Handles::Get().Find(lease);
  if (handle.ok()) KVTIER_TRY(CheckBlocks(*handle->lease, first, count));
  // From here on `count` is believable, so that no early return leaves a result that reads as success.
  for (size_t i = 0; i < count; ++i)
    results[i] = {.code = KVTIER_STALE, .precision = KVTIER_PRECISION_ANY, .k_error = 0, .v_error = 0};
  return handle;
}

Status Fetch(Lease& lease, size_t first, size_t count, LayerRange layers, const kvtier_view* destination,
             std::span<kvtier_block_result> results) {
  const LeasedBlock& last = lease.blocks[first + count - 1];
  const uint64_t tokens = last.info.position + last.info.tokens - lease.blocks[first].info.position;
  KVTIER_ASSIGN(const View view, View::CheckDestination(destination, lease.model->spec, layers, tokens));
  FetchBlocks(lease, first, layers, view, results);
  return FirstFailure(first, results, " was not fetched");
}

Result<PutOptions> CheckPutOptions(const kvtier_put_options& options) {
  KVTIER_TRY(CheckPrecision(options.floor));
  if (options.durability != KVTIER_MEMORY && options.durability != KVTIER_DURABLE) {
    return Status(Code::kInvalidArgument, "durability is unknown");
  }
  if (options.priority > 255) return Status(Code::kInvalidArgument, "priority is above 255");
  return PutOptions{.durability = options.durability,
                    .floor = options.floor,
                    .priority = options.priority,
                    .ttl_ms = options.ttl_ms};
}

/// Keys in slices of at most the daemon's limit.
Status ForEachSlice(const Connection& connection, std::span<const kvtier_block_ref> refs,
                    const std::function<Status(std::span<const kvtier_block_ref>)>& call) {
  const size_t limit = connection.welcome().limits().keys_per_call();
  for (size_t at = 0; at < refs.size(); at += limit) {
    KVTIER_TRY(call(refs.subspan(at, std::min(limit, refs.size() - at))));
  }
  return Status::Ok();
}

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

}  // namespace
}  // namespace kvtier::client

using namespace kvtier;  // NOLINT(google-build-using-namespace): the C functions below are the whole rest
using namespace kvtier::client;  // NOLINT(google-build-using-namespace)

extern "C" {

kvtier_code kvtier_lookup(kvtier_model* model, const kvtier_query* query, kvtier_match* matches,
                          kvtier_lookup_result* result, uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    if (result == nullptr) return Status(Code::kInvalidArgument, "result is NULL");
    *result = {};
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    KVTIER_ASSIGN(const Query checked, CheckQuery(*handle.model, query));
    LookupOutcome outcome;
    KVTIER_TRY(Lookup(*handle.client, *handle.model, checked, handle.client->Deadline(timeout_ms), outcome));
    return FillLookupResult(checked, outcome, matches, *result);
  });
}

kvtier_code kvtier_acquire(kvtier_model* model, const kvtier_query* query,
                           const kvtier_acquire_options* options, kvtier_lease** out) {
  return Guard([&]() -> Status {
    if (out == nullptr) return Status(Code::kInvalidArgument, "out is NULL");
    *out = nullptr;
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    KVTIER_ASSIGN(const kvtier_acquire_options given, OptionsOf(options));
    KVTIER_TRY(CheckPrecision(given.min_precision));
    KVTIER_ASSIGN(const Query checked, CheckQuery(*handle.model, query));
    KVTIER_ASSIGN(std::shared_ptr<Lease> lease, Acquire(*handle.client, handle.model, checked,
                                                        {.min_precision = given.min_precision,
                                                         .ttl_ms = given.ttl_ms,
                                                         .max_block_bytes = given.max_block_bytes},
                                                        handle.client->Deadline(given.timeout_ms)));
    *out = Handles::Get().Add({.client = handle.client, .lease = std::move(lease)});
    return Status::Ok();
  });
}

size_t kvtier_lease_count(const kvtier_lease* lease) {
  size_t count = 0;
  Guard([&]() -> Status {
    KVTIER_ASSIGN(const Handles::LeaseHandle handle, Handles::Get().Find(lease));
    count = handle.lease->blocks.size();
    return Status::Ok();
  });
  return count;
}

size_t kvtier_lease_tokens(const kvtier_lease* lease) {
  size_t tokens = 0;
  Guard([&]() -> Status {
    KVTIER_ASSIGN(const Handles::LeaseHandle handle, Handles::Get().Find(lease));
    for (const LeasedBlock& block : handle.lease->blocks) tokens += block.info.tokens;
    return Status::Ok();
  });
  return tokens;
}

kvtier_code kvtier_lease_block(const kvtier_lease* lease, size_t index, kvtier_block_info* out) {
  return Guard([&]() -> Status {
    if (out == nullptr) return Status(Code::kInvalidArgument, "out is NULL");
    KVTIER_ASSIGN(const Handles::LeaseHandle handle, Handles::Get().Find(lease));
    if (index >= handle.lease->blocks.size())
      return Status(Code::kOutOfRange, "the lease holds fewer blocks");
    *out = handle.lease->blocks[index].info;
    return Status::Ok();
  });
}

kvtier_code kvtier_fetch(kvtier_lease* lease, size_t first, size_t count, uint32_t first_layer,
                         uint32_t layers, const kvtier_view* destination, kvtier_block_result* results) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const Handles::LeaseHandle handle, BeginResults(lease, first, count, results));
    KVTIER_ASSIGN(const LayerRange range, CheckLayers(*handle.lease->model, first_layer, layers));
    return Fetch(*handle.lease, first, count, range, destination, {results, count});
  });
}

kvtier_code kvtier_fetch_async(kvtier_lease* lease, size_t first, size_t count, uint32_t first_layer,
                               uint32_t layers, const kvtier_view* destination, kvtier_ticket* ticket) {
  return Guard([&]() -> Status {
    if (ticket == nullptr) return Status(Code::kInvalidArgument, "ticket is NULL");
    *ticket = 0;
    KVTIER_ASSIGN(const Handles::LeaseHandle handle, Handles::Get().Find(lease));
    KVTIER_TRY(CheckBlocks(*handle.lease, first, count));
    KVTIER_ASSIGN(const LayerRange range, CheckLayers(*handle.lease->model, first_layer, layers));
    KVTIER_ASSIGN(std::shared_ptr<LayerFetch> fetch,
                  LayerFetch::Make(handle.lease, first, count, range, destination));
    KVTIER_TRY(handle.client->fetches().Start(fetch));
    *ticket = handle.client->AddTicket({.kind = Ticket::Kind::kFetch,
                                        .connection = nullptr,
                                        .progress = nullptr,
                                        .fetch = std::move(fetch),
                                        .remote_tickets = {}});
    return Status::Ok();
  });
}

kvtier_code kvtier_wait_layer(kvtier_client* handle, kvtier_ticket ticket, uint32_t layer,
                              kvtier_block_result* results, size_t capacity, uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    if (results == nullptr) return Status(Code::kInvalidArgument, "results is NULL");
    if (capacity > kMaxLeaseBlocks)
      return Status(Code::kInvalidArgument, "capacity is above what a lease can hold");
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    size_t count = 0;
    KVTIER_TRY(WaitLayer(*client, ticket, layer, client->Deadline(timeout_ms), {results, capacity}, count));
    return FirstFailure(0, {results, count}, " of the fetch was not fetched");
  });
}

kvtier_code kvtier_completion_fd(kvtier_client* handle, int* fd) {
  return Guard([&]() -> Status {
    if (fd == nullptr) return Status(Code::kInvalidArgument, "fd is NULL");
    *fd = -1;
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    KVTIER_ASSIGN(*fd, client->completions().Descriptor());
    return Status::Ok();
  });
}

kvtier_code kvtier_completed(kvtier_client* handle, kvtier_ticket* tickets, size_t capacity, size_t* count) {
  return Guard([&]() -> Status {
    if (tickets == nullptr || count == nullptr)
      return Status(Code::kInvalidArgument, "tickets or count is NULL");
    *count = 0;
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    *count = client->completions().Take({tickets, std::min(capacity, kMaxCompletionsPerCall)});
    return Status::Ok();
  });
}

kvtier_code kvtier_attend(kvtier_lease* lease, size_t first, size_t count, uint32_t layer,
                          const kvtier_attention* attention, kvtier_block_result* results) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const Handles::LeaseHandle handle, BeginResults(lease, first, count, results));
    KVTIER_ASSIGN(const Attention checked,
                  Attention::Check(attention, layer, handle.lease->model->spec, count));
    AttendBlocks(*handle.lease, first, checked, {results, count});
    return FirstFailure(first, {results, count}, " was left out");
  });
}

kvtier_code kvtier_release(kvtier_lease* lease) {
  return Guard([&]() -> Status {
    if (lease == nullptr) return Status(Code::kStale, "the lease is NULL");
    KVTIER_ASSIGN(const Handles::LeaseHandle handle, Handles::Get().Take(lease));
    return Release(*handle.lease, handle.client->Deadline(0));
  });
}

kvtier_code kvtier_put(kvtier_model* model, const kvtier_query* blocks, const kvtier_view* source,
                       const kvtier_put_options* options, kvtier_ticket* ticket) {
  return Guard([&]() -> Status {
    if (ticket == nullptr) return Status(Code::kInvalidArgument, "ticket is NULL");
    *ticket = 0;
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    KVTIER_ASSIGN(const kvtier_put_options given, OptionsOf(options));
    KVTIER_ASSIGN(const PutOptions checked_options, CheckPutOptions(given));
    KVTIER_ASSIGN(const Query query, CheckQuery(*handle.model, blocks));
    KVTIER_ASSIGN(const View view,
                  View::CheckSource(source, handle.model->spec, TokensOf(blocks->refs, blocks->count)));
    return Put(*handle.client, handle.model, query, view, checked_options,
               handle.client->Deadline(given.timeout_ms), *ticket);
  });
}

kvtier_code kvtier_wait(kvtier_client* handle, kvtier_ticket ticket, kvtier_put_result* results,
                        size_t capacity, uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    std::vector<kvtier_put_result> outcomes;
    const size_t room = results == nullptr ? SIZE_MAX : capacity;
    KVTIER_TRY(WaitTicket(*client, ticket, client->Deadline(timeout_ms), room, outcomes));
    if (results != nullptr) std::copy(outcomes.begin(), outcomes.end(), results);
    for (const kvtier_put_result& outcome : outcomes) {
      if (outcome.code != KVTIER_OK && outcome.code != KVTIER_PRESENT) {
        return Status(static_cast<Code>(outcome.code), "a block of the put was not stored");
      }
    }
    return Status::Ok();
  });
}

kvtier_code kvtier_prefetch(kvtier_model* model, const kvtier_query* query, uint32_t tier,
                            uint32_t timeout_ms, kvtier_ticket* ticket, uint32_t* started) {
  return Guard([&]() -> Status {
    if (ticket == nullptr || started == nullptr)
      return Status(Code::kInvalidArgument, "ticket or started is NULL");
    *ticket = 0;
    *started = 0;
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    KVTIER_ASSIGN(const Query checked, CheckQuery(*handle.model, query));
    Ticket made;
    KVTIER_TRY(Prefetch(*handle.client, *handle.model, checked, tier, handle.client->Deadline(timeout_ms),
                        made, *started));
    *ticket = handle.client->AddTicket(std::move(made));
    return Status::Ok();
  });
}

kvtier_code kvtier_cancel(kvtier_client* handle, kvtier_ticket ticket) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    return CancelTicket(*client, ticket, client->Deadline(0));
  });
}

kvtier_code kvtier_remove(kvtier_model* model, const kvtier_query* query, uint64_t* removed,
                          uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    KVTIER_ASSIGN(const Query checked, CheckQuery(*handle.model, query));
    uint64_t count = 0;
    KVTIER_TRY(RemoveBlocks(*handle.client, *handle.model, checked.refs, count,
                            handle.client->Deadline(timeout_ms)));
    if (removed != nullptr) *removed = count;
    return Status::Ok();
  });
}

kvtier_code kvtier_clear(kvtier_model* model, uint64_t* removed, uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    uint64_t count = 0;
    KVTIER_TRY(RemoveBlocks(*handle.client, *handle.model, {}, count, handle.client->Deadline(timeout_ms)));
    if (removed != nullptr) *removed = count;
    return Status::Ok();
  });
}

}  // extern "C"
