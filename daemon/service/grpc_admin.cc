#include <spdlog/spdlog.h>

#include "daemon/service/convert.h"
#include "daemon/service/grpc_service.h"

/// Looking and administration: everything but Stats is for the admin identity.
namespace kvtier {
namespace {

constexpr auto kFillCount = [](uint64_t count, v1::CountReply& out) { out.set_count(count); };

/// What "all" is in the messages (0) and in the commands.
uint64_t CountOf(const v1::TierCountRequest& request) {
  return request.count() == 0 ? UINT64_MAX : request.count();
}

/// Who told the daemon to change something, whatever came of it.
void Audit(const ClientSession& session, const std::string& what) {
  spdlog::info("admin: {} by {}, session {}", what, session.tenant_name, session.id.value);
}

std::string BlocksOf(const v1::TierCountRequest& request) {
  const std::string count = request.count() == 0 ? "all" : "up to " + std::to_string(request.count());
  return count + " blocks of tier " + std::to_string(request.tier());
}

}  // namespace

GrpcService::Reactor* GrpcService::Stats(Context* context, const v1::StatsRequest* request,
                                         v1::StatsReply* reply) {
  return Serve(context, request->session_token(), 0, Need::kSession,
               [&](const std::shared_ptr<ClientSession>&, Reactor* reactor) -> Result<CommandBody> {
                 return CommandBody(kvtier::Stats{
                     .reply = FinishWith<kvtier::StatsReply>(
                         reactor, reply, [this](const kvtier::StatsReply& stats, v1::StatsReply& out) {
                           Fill(stats, out);
                           out.set_version(options_.version);
                           out.set_uptime_ms(UptimeMs());
                         })});
               });
}

uint64_t GrpcService::UptimeMs() const {
  const auto uptime = deps_.clock.Now() - started_at_;
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(uptime).count());
}

GrpcService::Reactor* GrpcService::ListModels(Context* context, const v1::ListModelsRequest* request,
                                              v1::ListModelsReply* reply) {
  return Serve(
      context, request->session_token(), 0, Need::kAdmin,
      [&](const std::shared_ptr<ClientSession>&, Reactor* reactor) -> Result<CommandBody> {
        return CommandBody(kvtier::ListModels{
            .reply = FinishWith<std::vector<ModelStats>>(
                reactor, reply, [](const auto& models, v1::ListModelsReply& out) { Fill(models, out); })});
      });
}

GrpcService::Reactor* GrpcService::ListBlocks(Context* context, const v1::ListBlocksRequest* request,
                                              v1::ListBlocksReply* reply) {
  return Serve(
      context, request->session_token(), 0, Need::kAdmin,
      [&](const std::shared_ptr<ClientSession>&, Reactor* reactor) -> Result<CommandBody> {
        Key after;
        if (!request->after().empty()) {
          KVTIER_ASSIGN(after, ParseKey(request->after(), "after"));
        }
        if (request->limit() > kMaxKeysPerCall) {
          return Status(Code::kInvalidArgument, "limit must be at most " + std::to_string(kMaxKeysPerCall));
        }
        return CommandBody(kvtier::ListBlocks{
            .model = ModelId{request->model()},
            .after = after,
            .limit = request->limit() == 0 ? kMaxKeysPerCall : request->limit(),
            .reply = FinishWith<std::vector<BlockStats>>(
                reactor, reply, [](const auto& blocks, v1::ListBlocksReply& out) { Fill(blocks, out); })});
      });
}

GrpcService::Reactor* GrpcService::Demote(Context* context, const v1::TierCountRequest* request,
                                          v1::CountReply* reply) {
  return Serve(context, request->session_token(), request->deadline_ms(), Need::kAdmin,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 KVTIER_ASSIGN(TierId tier, ParseTier(request->tier()));
                 Audit(*session, "demote " + BlocksOf(*request));
                 return CommandBody(AdminDemote{.from = tier,
                                                .count = CountOf(*request),
                                                .reply = FinishWith<uint64_t>(reactor, reply, kFillCount)});
               });
}

GrpcService::Reactor* GrpcService::Evict(Context* context, const v1::TierCountRequest* request,
                                         v1::CountReply* reply) {
  return Serve(context, request->session_token(), request->deadline_ms(), Need::kAdmin,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 KVTIER_ASSIGN(TierId tier, ParseTier(request->tier()));
                 Audit(*session, "evict " + BlocksOf(*request));
                 return CommandBody(AdminEvict{.from = tier,
                                               .count = CountOf(*request),
                                               .reply = FinishWith<uint64_t>(reactor, reply, kFillCount)});
               });
}

GrpcService::Reactor* GrpcService::Verify(Context* context, const v1::VerifyRequest* request,
                                          v1::VerifyReply* reply) {
  return Serve(context, request->session_token(), request->deadline_ms(), Need::kAdmin,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 KVTIER_ASSIGN(TierId tier, ParseTier(request->tier()));
                 Audit(*session, "verify tier " + std::to_string(request->tier()));
                 return CommandBody(AdminVerify{
                     .tier = tier,
                     .reply = FinishWith<kvtier::VerifyReply>(
                         reactor, reply, [](const kvtier::VerifyReply& result, v1::VerifyReply& out) {
                           out.set_checked(result.checked);
                           out.set_corrupt(result.corrupt);
                           for (const Key& key : result.corrupt_keys) {
                             out.add_corrupt_keys(key.bytes.data(), key.bytes.size());
                           }
                         })});
               });
}

GrpcService::Reactor* GrpcService::Drain(Context* context, const v1::DrainRequest* request,
                                         v1::CountReply* reply) {
  return Serve(context, request->session_token(), request->deadline_ms(), Need::kAdmin,
               [&](const std::shared_ptr<ClientSession>& session, Reactor* reactor) -> Result<CommandBody> {
                 Audit(*session, "drain");
                 return CommandBody(AdminDrain{.reply = FinishWith<uint64_t>(reactor, reply, kFillCount)});
               });
}

}  // namespace kvtier
