#include <algorithm>
#include <optional>
#include <span>

#include "client/src/api_support.h"
#include "client/src/attend.h"
#include "client/src/fetch.h"
#include "client/src/layer_fetch.h"
#include "client/src/lease.h"
#include "client/src/lookup.h"
#include "client/src/prefetch.h"
#include "client/src/put.h"
#include "client/src/query.h"
#include "client/src/remove.h"
#include "client/src/view.h"

namespace kvtier::client {
namespace {

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

Status CheckPrecision(const kvtier_precision& precision) {
  if (v1::Precision_IsValid(static_cast<int>(NumberOf(precision)))) return Status::Ok();
  return Status(Code::kInvalidArgument, "precision is unknown");
}

Status CheckBlocks(const Lease& lease, size_t first, size_t count) {
  const size_t held = lease.blocks.size();
  if (count > 0 && first < held && count <= held - first) return Status::Ok();
  return Status(Code::kInvalidArgument, "blocks are outside the lease's");
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
  if (NumberOf(options.durability) > KVTIER_DURABLE) {
    return Status(Code::kInvalidArgument, "durability is unknown");
  }
  if (options.priority > 255) return Status(Code::kInvalidArgument, "priority is above 255");
  return PutOptions{.durability = options.durability,
                    .floor = options.floor,
                    .priority = options.priority,
                    .ttl_ms = options.ttl_ms};
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
