#include "daemon/service/grpc_service.h"

#include <algorithm>

#include "daemon/service/convert.h"

namespace kvtier {
namespace {

/// For replies whose success has nothing to say.
constexpr auto kNothingToFill = [](const Done&, auto&) {};

}  // namespace

Status GrpcService::Allow(const ClientSession* session, Need need) {
  if (session == nullptr) {
    deps_.metrics.unauthenticated_calls.Add();
    return Status(Code::kUnauthenticated, "no open session has this token");
  }
  if (need == Need::kAdmin && !session->admin) {
    return Status(Code::kPermissionDenied, "for root, the daemon's own user and [admin] only");
  }
  return Status::Ok();
}

void GrpcService::Submit(Reactor* reactor, TimePoint deadline, CommandBody body) {
  Command command{.deadline = deadline, .body = std::move(body)};
  if (deps_.commands.TryPushQuietly(std::move(command)))
    return deps_.on_queued();  // the engine finishes the reactor
  if (deps_.commands.closed()) {
    reactor->Finish(ToGrpc(Status(Code::kUnavailable, "the daemon stops")));
    return;
  }
  deps_.metrics.commands_rejected_full.Add();
  reactor->Finish(ToGrpc(Status(Code::kResourceExhausted, "the command queue is full")));
}

Duration GrpcService::LeaseTtl(uint32_t ttl_ms) const {
  const uint32_t wanted = ttl_ms == 0 ? options_.limits.lease_ttl_ms : ttl_ms;
  return std::chrono::milliseconds(std::min(wanted, options_.limits.max_lease_ttl_ms));
}

Result<TierId> GrpcService::ParseTier(uint32_t tier) const {
  if (tier >= options_.tiers) return Status(Code::kInvalidArgument, "no tier " + std::to_string(tier));
  return TierId{static_cast<uint8_t>(tier)};
}

GrpcService::Reactor* GrpcService::RegisterModel(Context* context, const v1::RegisterModelRequest* request,
                                                 v1::RegisterModelReply* reply) {
  return Serve(
      context, request->session_token(), 0, Need::kSession,
      [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
        KVTIER_ASSIGN(ModelSpec spec, ParseSpec(request->spec(), options_.limits.block_bytes));
        return CommandBody(kvtier::RegisterModel{
            .session = session->id,
            .spec = std::move(spec),
            .reply = FinishWith<RegisteredModel>(
                reactor, reply, [session](const RegisteredModel& model, v1::RegisterModelReply& out) {
                  session->RememberModel(model.model, model.spec);
                  Fill(model, out);
                })});
      });
}

GrpcService::Reactor* GrpcService::Lookup(Context* context, const v1::LookupRequest* request,
                                          v1::LookupReply* reply) {
  return Serve(context, request->session_token(), 0, Need::kSession,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 KVTIER_ASSIGN(Key parent, ParseKey(request->parent(), "parent"));
                 KVTIER_ASSIGN(std::vector<Key> keys,
                               ParseKeys(request->keys(), options_.limits.keys_per_call));
                 return CommandBody(kvtier::Lookup{
                     .session = session->id,
                     .model = ModelId{request->model()},
                     .parent = parent,
                     .keys = std::move(keys),
                     .reply = FinishWith<kvtier::LookupReply>(
                         reactor, reply, [](const auto& found, v1::LookupReply& out) { Fill(found, out); })});
               });
}

GrpcService::Reactor* GrpcService::Acquire(Context* context, const v1::AcquireRequest* request,
                                           v1::AcquireReply* reply) {
  return Serve(context, request->session_token(), request->deadline_ms(), Need::kSession,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 KVTIER_ASSIGN(Key parent, ParseKey(request->parent(), "parent"));
                 KVTIER_ASSIGN(std::vector<Key> keys,
                               ParseKeys(request->keys(), options_.limits.keys_per_call));
                 KVTIER_ASSIGN(Precision min_precision, ParsePrecision(request->min_precision()));
                 return CommandBody(kvtier::Acquire{
                     .session = session->id,
                     .model = ModelId{request->model()},
                     .lease = LeaseId{request->lease()},
                     .parent = parent,
                     .keys = std::move(keys),
                     .want_tails = request->want_tails(),
                     .min_precision = min_precision,
                     .ttl = LeaseTtl(request->ttl_ms()),
                     .max_block_bytes = request->max_block_bytes(),
                     .reply = FinishWith<kvtier::AcquireReply>(
                         reactor, reply, [clock = &deps_.clock](const auto& acquired, v1::AcquireReply& out) {
                           Fill(acquired, clock->Now(), out);
                         })});
               });
}

GrpcService::Reactor* GrpcService::Release(Context* context, const v1::ReleaseRequest* request,
                                           v1::ReleaseReply* reply) {
  return Serve(
      context, request->session_token(), 0, Need::kSession,
      [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
        std::vector<Key> damaged;
        if (!request->damaged_keys().empty()) {
          KVTIER_ASSIGN(damaged, ParseKeys(request->damaged_keys(), options_.limits.keys_per_call));
        }
        return CommandBody(kvtier::Release{.session = session->id,
                                           .lease = LeaseId{request->lease()},
                                           .damaged = std::move(damaged),
                                           .reply = FinishWith<Done>(reactor, reply, kNothingToFill)});
      });
}

GrpcService::Reactor* GrpcService::Renew(Context* context, const v1::RenewRequest* request,
                                         v1::RenewReply* reply) {
  return Serve(context, request->session_token(), 0, Need::kSession,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 return CommandBody(kvtier::Renew{.session = session->id,
                                                  .lease = LeaseId{request->lease()},
                                                  .ttl = LeaseTtl(request->ttl_ms()),
                                                  .reply = FinishWith<Done>(reactor, reply, kNothingToFill)});
               });
}

GrpcService::Reactor* GrpcService::Put(Context* context, const v1::PutRequest* request, v1::PutReply* reply) {
  return Serve(context, request->session_token(), request->deadline_ms(), Need::kSession,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 const std::optional<ModelSpec> spec = session->FindModel(ModelId{request->model()});
                 if (!spec) return Status(Code::kNotFound, "the model is not registered in this session");
                 if (!v1::Durability_IsValid(request->durability())) {
                   return Status(Code::kInvalidArgument, "unknown durability");
                 }
                 if (request->priority() > 255)
                   return Status(Code::kInvalidArgument, "priority must be at most 255");
                 KVTIER_ASSIGN(Precision floor, ParsePrecision(request->floor()));
                 KVTIER_ASSIGN(std::vector<PutBlock> blocks,
                               ParsePutBlocks(*request, *spec, *session, options_.limits.keys_per_call));
                 return CommandBody(kvtier::Put{
                     .session = session->id,
                     .model = ModelId{request->model()},
                     .ticket = TicketId{request->ticket()},
                     .durability = static_cast<Durability>(request->durability()),
                     .floor = floor,
                     .priority = static_cast<uint8_t>(request->priority()),
                     .ttl = std::chrono::milliseconds(request->ttl_ms()),
                     .blocks = std::move(blocks),
                     .reply = FinishWith<kvtier::PutReply>(
                         reactor, reply, [](const auto& put, v1::PutReply& out) { Fill(put, out); })});
               });
}

GrpcService::Reactor* GrpcService::WaitTicket(Context* context, const v1::WaitTicketRequest* request,
                                              v1::PutReply* reply) {
  return Serve(context, request->session_token(), request->deadline_ms(), Need::kSession,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 return CommandBody(kvtier::WaitTicket{
                     .session = session->id,
                     .ticket = TicketId{request->ticket()},
                     .reply = FinishWith<kvtier::PutReply>(
                         reactor, reply, [](const auto& put, v1::PutReply& out) { Fill(put, out); })});
               });
}

GrpcService::Reactor* GrpcService::Prefetch(Context* context, const v1::PrefetchRequest* request,
                                            v1::PrefetchReply* reply) {
  return Serve(
      context, request->session_token(), request->deadline_ms(), Need::kSession,
      [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
        KVTIER_ASSIGN(TierId target, ParseTier(request->tier()));
        KVTIER_ASSIGN(std::vector<Key> keys, ParseKeys(request->keys(), options_.limits.keys_per_call));
        return CommandBody(kvtier::Prefetch{
            .session = session->id,
            .model = ModelId{request->model()},
            .ticket = TicketId{request->ticket()},
            .target = target,
            .keys = std::move(keys),
            .reply = FinishWith<uint32_t>(
                reactor, reply, [](uint32_t started, v1::PrefetchReply& out) { out.set_started(started); })});
      });
}

GrpcService::Reactor* GrpcService::Cancel(Context* context, const v1::CancelRequest* request,
                                          v1::CancelReply* reply) {
  return Serve(
      context, request->session_token(), 0, Need::kSession,
      [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
        return CommandBody(kvtier::Cancel{.session = session->id,
                                          .ticket = TicketId{request->ticket()},
                                          .reply = FinishWith<Done>(reactor, reply, kNothingToFill)});
      });
}

GrpcService::Reactor* GrpcService::Remove(Context* context, const v1::RemoveRequest* request,
                                          v1::RemoveReply* reply) {
  return Serve(
      context, request->session_token(), 0, Need::kSession,
      [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
        // The engine reads "no keys" as everything: that must have been asked for in so many words.
        std::vector<Key> keys;
        if (!request->whole_namespace()) {
          KVTIER_ASSIGN(keys, ParseKeys(request->keys(), options_.limits.keys_per_call));
        } else if (!request->keys().empty()) {
          return Status(Code::kInvalidArgument, "either keys or whole_namespace");
        }
        return CommandBody(kvtier::Remove{
            .session = session->id,
            .model = ModelId{request->model()},
            .keys = std::move(keys),
            .reply = FinishWith<uint64_t>(
                reactor, reply, [](uint64_t removed, v1::RemoveReply& out) { out.set_removed(removed); })});
      });
}

}  // namespace kvtier
