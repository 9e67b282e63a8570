#pragma once

#include "daemon/service/grpc_call.h"
#include "daemon/service/grpc_server.h"
#include "proto/kvtier.grpc.pb.h"

namespace kvtier {

/// The methods of proto/kvtier.proto: token -> caller, checks, one Command. Threads: any gRPC thread; nothing
/// blocks.
class GrpcService final : public v1::Kvtier::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  GrpcService(GrpcServerOptions options, GrpcServer::Deps deps)
      : options_(std::move(options)), deps_(deps), started_at_(deps.clock.Now()) {}

  // grpc_service.cc
  Reactor* RegisterModel(Context*, const v1::RegisterModelRequest*, v1::RegisterModelReply*) override;
  Reactor* Lookup(Context*, const v1::LookupRequest*, v1::LookupReply*) override;
  Reactor* Acquire(Context*, const v1::AcquireRequest*, v1::AcquireReply*) override;
  Reactor* Release(Context*, const v1::ReleaseRequest*, v1::ReleaseReply*) override;
  Reactor* Renew(Context*, const v1::RenewRequest*, v1::RenewReply*) override;
  Reactor* Put(Context*, const v1::PutRequest*, v1::PutReply*) override;
  Reactor* WaitTicket(Context*, const v1::WaitTicketRequest*, v1::PutReply*) override;
  Reactor* Prefetch(Context*, const v1::PrefetchRequest*, v1::PrefetchReply*) override;
  Reactor* Cancel(Context*, const v1::CancelRequest*, v1::CancelReply*) override;
  Reactor* Remove(Context*, const v1::RemoveRequest*, v1::RemoveReply*) override;
  // grpc_admin.cc
  Reactor* Stats(Context*, const v1::StatsRequest*, v1::StatsReply*) override;
  Reactor* ListModels(Context*, const v1::ListModelsRequest*, v1::ListModelsReply*) override;
  Reactor* ListBlocks(Context*, const v1::ListBlocksRequest*, v1::ListBlocksReply*) override;
  Reactor* Demote(Context*, const v1::TierCountRequest*, v1::CountReply*) override;
  Reactor* Evict(Context*, const v1::TierCountRequest*, v1::CountReply*) override;
  Reactor* Verify(Context*, const v1::VerifyRequest*, v1::VerifyReply*) override;
  Reactor* Drain(Context*, const v1::DrainRequest*, v1::CountReply*) override;
  // grpc_watch.cc
  grpc::ServerWriteReactor<v1::Event>* Watch(Context*, const v1::WatchRequest*) override;
  void TakeSnapshots();

 private:
  enum class Need : uint8_t { kSession, kAdmin };

  /// Finds the caller, lets `build(session, reactor)` make the Result<CommandBody>, and queues it.
  template <typename Build>
  Reactor* Serve(Context* context, const std::string& token, uint32_t deadline_ms, Need need, Build build) {
    Reactor* reactor = context->DefaultReactor();
    const std::shared_ptr<ClientSession> session = deps_.registry.Find(token);
    const Status allowed = Allow(session.get(), need);
    if (!allowed.ok()) {
      reactor->Finish(ToGrpc(allowed));
      return reactor;
    }
    Result<CommandBody> body = build(session, reactor);
    if (!body.ok()) {
      reactor->Finish(ToGrpc(body.status()));
    } else {
      Submit(reactor, DeadlineOf(*context, deadline_ms, options_.default_deadline, deps_.clock.Now()),
             std::move(body).value());
    }
    return reactor;
  }
  void TakeSnapshot(std::shared_ptr<EventWatcher> watcher);
  uint64_t UptimeMs() const;
  Status Allow(const ClientSession* session, Need need);
  void Submit(Reactor* reactor, TimePoint deadline, CommandBody body);
  Duration LeaseTtl(uint32_t ttl_ms) const;
  Result<TierId> ParseTier(uint32_t tier) const;

  const GrpcServerOptions options_;
  const GrpcServer::Deps deps_;
  const TimePoint started_at_;
};

}  // namespace kvtier
