#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "client/src/api_support.h"
#include "client/src/model.h"
#include "client/src/query.h"
#include "daemon/policy/keys.h"

#ifndef KVTIER_VERSION
#error "the build passes KVTIER_VERSION"
#endif

namespace kvtier::client {
namespace {

constexpr char kDefaultSocket[] = "/run/kvtier/kvtierd.sock";
constexpr size_t kMaxClientNameBytes = 64;
constexpr size_t kMaxForeignHashBytes = 1024;

std::string SocketPath(const kvtier_options& options) {
  if (options.socket != nullptr) return options.socket;
  const char* from_environment = std::getenv("KVTIER_SOCKET");
  return from_environment != nullptr ? from_environment : kDefaultSocket;
}

Status Open(const kvtier_options* options, kvtier_client** out) {
  KVTIER_ASSIGN(const kvtier_options checked, OptionsOf(options));
  Client::Options made;
  made.connection.socket = SocketPath(checked);
  made.connection.client_name =
      checked.client_name != nullptr ? checked.client_name : program_invocation_short_name;
  made.connection.client_name.resize(std::min(made.connection.client_name.size(), kMaxClientNameBytes));
  if (checked.fetch_threads > FetchPool::kMaxThreads)
    return Status(Code::kInvalidArgument, "fetch_threads is above 64");
  made.fetch_threads = std::max<uint32_t>(checked.fetch_threads, 1);
  if (checked.timeout_ms != 0) made.timeout = std::chrono::milliseconds(checked.timeout_ms);
  Handles& handles = Handles::Get();
  KVTIER_TRY(handles.AllowOpen());
  KVTIER_ASSIGN(std::shared_ptr<Client> client, Client::Open(std::move(made)));
  *out = handles.Add(std::move(client));
  return Status::Ok();
}

void FillRef(const BlockRef& from, kvtier_block_ref& to) {
  std::memcpy(to.key, from.key.bytes.data(), KVTIER_KEY_BYTES);
  std::memcpy(to.parent, from.parent.bytes.data(), KVTIER_KEY_BYTES);
  to.position = from.position;
  to.tokens = from.tokens;
}

void CopyText(const std::string& from, char (&to)[16]) {
  std::strncpy(to, from.c_str(), sizeof(to) - 1);
}

void FillStats(const v1::StatsReply& reply, const Connection& connection, kvtier_stats& out) {
  const uint32_t struct_size = out.struct_size;
  out = {};
  out.struct_size = struct_size;
  constexpr int kMaxTiers = sizeof(out.tier) / sizeof(out.tier[0]);
  out.tiers = static_cast<uint32_t>(std::min(reply.tiers_size(), kMaxTiers));
  for (uint32_t i = 0; i < out.tiers; ++i) {
    const v1::TierStats& from = reply.tiers(static_cast<int>(i));
    kvtier_tier_stats& to = out.tier[i];
    CopyText(from.name(), to.name);
    CopyText(from.medium(), to.medium);
    CopyText(from.codec(), to.codec);
    to.capacity_bytes = from.capacity_bytes();
    to.used_bytes = from.used_bytes();
    for (int p = 0; p < std::min(from.blocks_size(), 6); ++p) to.blocks[p] = from.blocks(p);
    to.accepts_writes = from.accepts_writes() ? 1 : 0;
  }
  out.blocks = reply.table_entries();
  out.leases = reply.leases_live();
  out.sessions = reply.sessions();
  out.models = reply.models();
  std::memcpy(out.boot_id, connection.welcome().boot_id().data(), sizeof(out.boot_id));
}

}  // namespace
}  // namespace kvtier::client

using namespace kvtier;  // NOLINT(google-build-using-namespace): the C functions below are the whole rest
using namespace kvtier::client;  // NOLINT(google-build-using-namespace)

extern "C" {

kvtier_code kvtier_open(const kvtier_options* options, kvtier_client** out) {
  return Guard([&]() -> Status {
    if (out == nullptr) return Status(Code::kInvalidArgument, "out is NULL");
    *out = nullptr;
    return Open(options, out);
  });
}

void kvtier_close(kvtier_client* handle) {
  if (handle == nullptr) return;
  Guard([&]() -> Status {
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Take(handle));
    client->Close();
    return Status::Ok();
  });
}

const char* kvtier_last_error(void) {
  return LastError();
}

const char* kvtier_precision_name(kvtier_precision precision) {
  switch (precision) {
    case KVTIER_PRECISION_ANY:
      return "ANY";
    case KVTIER_INT2:
      return "INT2";
    case KVTIER_K4V2:
      return "K4V2";
    case KVTIER_INT4:
      return "INT4";
    case KVTIER_BITS8:
      return "BITS8";
    case KVTIER_BITS16:
      return "BITS16";
  }
  return "UNKNOWN";
}

const char* kvtier_code_name(kvtier_code code) {
  switch (code) {
    case KVTIER_OK:
      return "OK";
    case KVTIER_CANCELLED:
      return "CANCELLED";
    case KVTIER_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case KVTIER_DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case KVTIER_NOT_FOUND:
      return "NOT_FOUND";
    case KVTIER_PRESENT:
      return "PRESENT";
    case KVTIER_PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case KVTIER_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case KVTIER_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case KVTIER_ABORTED:
      return "ABORTED";
    case KVTIER_OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case KVTIER_UNSUPPORTED:
      return "UNSUPPORTED";
    case KVTIER_INTERNAL:
      return "INTERNAL";
    case KVTIER_UNAVAILABLE:
      return "UNAVAILABLE";
    case KVTIER_CORRUPT:
      return "CORRUPT";
    case KVTIER_UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case KVTIER_STALE:
      return "STALE";
    case KVTIER_PENDING:
      return "PENDING";
  }
  return "UNKNOWN";
}

const char* kvtier_version(void) {
  return KVTIER_VERSION;
}

kvtier_code kvtier_register_model(kvtier_client* handle, const kvtier_model_spec* spec, kvtier_model** out) {
  return Guard([&]() -> Status {
    if (out == nullptr || spec == nullptr) return Status(Code::kInvalidArgument, "spec or out is NULL");
    *out = nullptr;
    KVTIER_ASSIGN(std::shared_ptr<Client> client, Handles::Get().Find(handle));
    KVTIER_ASSIGN(const kvtier_model_spec checked, OptionsOf(spec));
    KVTIER_ASSIGN(v1::ModelSpec wire, SpecToWire(checked));
    KVTIER_ASSIGN(std::shared_ptr<const Model> model,
                  client->RegisterModel(std::move(wire), client->Deadline(0)));
    *out = Handles::Get().Add({.client = std::move(client), .model = std::move(model)});
    return Status::Ok();
  });
}

kvtier_code kvtier_model_namespace(const kvtier_model* model, uint8_t out[KVTIER_KEY_BYTES]) {
  return Guard([&]() -> Status {
    if (out == nullptr) return Status(Code::kInvalidArgument, "out is NULL");
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    std::memcpy(out, handle.model->name_space.bytes.data(), KVTIER_KEY_BYTES);
    return Status::Ok();
  });
}

kvtier_code kvtier_keys(const kvtier_model* model, const int32_t* tokens, size_t n_tokens,
                        kvtier_block_ref* out, size_t capacity, size_t* count) {
  return Guard([&]() -> Status {
    if (count == nullptr) return Status(Code::kInvalidArgument, "count is NULL");
    *count = 0;
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    if (n_tokens > 0 && tokens == nullptr) return Status(Code::kInvalidArgument, "tokens is NULL");
    const uint32_t tokens_per_block = handle.model->spec.tokens_per_block;
    *count = n_tokens / tokens_per_block + (n_tokens % tokens_per_block != 0 ? 1 : 0);
    if (*count > capacity || (*count > 0 && out == nullptr)) {
      return Status(Code::kOutOfRange, std::to_string(*count) + " keys do not fit");
    }
    const std::vector<BlockRef> chain =
        ChainKeys(handle.model->name_space, tokens_per_block, {tokens, n_tokens});
    for (size_t i = 0; i < chain.size(); ++i) FillRef(chain[i], out[i]);
    return Status::Ok();
  });
}

kvtier_code kvtier_foreign_key(const kvtier_model* model, const void* engine_hash, size_t bytes,
                               uint8_t out[KVTIER_KEY_BYTES]) {
  return Guard([&]() -> Status {
    if (engine_hash == nullptr || out == nullptr || bytes == 0 || bytes > kMaxForeignHashBytes) {
      return Status(Code::kInvalidArgument, "engine_hash must have 1 to 1024 bytes");
    }
    KVTIER_ASSIGN(const Handles::ModelHandle handle, Handles::Get().Find(model));
    const Key key = ForeignKey(handle.model->name_space, {static_cast<const char*>(engine_hash), bytes});
    std::memcpy(out, key.bytes.data(), KVTIER_KEY_BYTES);
    return Status::Ok();
  });
}

kvtier_code kvtier_get_stats(kvtier_client* handle, kvtier_stats* out, uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    if (out == nullptr || out->struct_size < sizeof(kvtier_stats)) {
      return Status(Code::kInvalidArgument, "stats: struct_size is not set");
    }
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    const TimePoint deadline = client->Deadline(timeout_ms);
    return client->OnConnection(deadline, [&](const std::shared_ptr<Connection>& connection) -> Status {
      v1::StatsRequest request;
      request.set_session_token(connection->token());
      v1::StatsReply reply;
      KVTIER_TRY(connection->rpc().Call(request, reply, deadline));
      FillStats(reply, *connection, *out);
      return Status::Ok();
    });
  });
}

}  // extern "C"
