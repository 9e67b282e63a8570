// Requests of proto/kvtier.proto through the service into the engine, on a fake ladder.
//
// An input is a list of steps: a byte that says what, then what that needs. Methods take a byte for the
// session (0xFF: the token in the message counts), the length of the message in two bytes, and the message.
#include <grpcpp/test/default_reactor_test_peer.h>

#include <algorithm>
#include <array>
#include <list>
#include <map>

#include "daemon/service/convert.h"
#include "daemon/service/grpc_service.h"
#include "tests/fuzz/commands_steps.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "tests/support/engine_harness.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kStagingBytes = 256 * kKiB;
constexpr size_t kSessions = 3;
constexpr size_t kMaxSteps = 64;
constexpr uint32_t kMaxKeys = 64;
constexpr uint32_t kMaxLeases = 8, kMaxModels = 4;
constexpr uint64_t kMaxEntries = 48;
constexpr uint64_t kSegmentBytes = 48 * kKiB;
constexpr TierId kCxlTier{2};

/// The same memory for every input: zeros, which nobody writes.
std::shared_ptr<const Staging> SharedStaging() {
  static const std::shared_ptr<const Staging> staging =
      Staging::Make(std::make_shared<StagingBudget>(kStagingBytes), kStagingBytes).value().staging;
  return staging;
}

EngineHarness::Options LadderOptions() {
  EngineHarness::Options options;
  options.tiers = {HostTier("hot", 192 * kKiB, CodecId::kRaw16), HostTier("warm", 128 * kKiB, CodecId::kKv4p),
                   ColdTier("cxl", kCxlMetaBytes + 4 * kSegmentBytes, kSegmentBytes, CodecId::kKv2p),
                   ColdTier("cold", 8 * kSegmentBytes, kSegmentBytes, CodecId::kKv2p)};
  options.tiers[2].kind = MediumKind::kCxl;
  options.tiers[2].tenant = "uid:1";
  options.tiers[3].keep_tails = true;
  options.tiers[3].admission = {.by_frequency = true, .write_bytes_per_day = 24 * kKiB * kKiB};
  options.limits.leases_per_session = kMaxLeases;
  options.limits.models_per_session = kMaxModels;
  options.limits.sessions = kSessions;
  options.limits.max_entries = kMaxEntries;
  options.limits.jobs_in_flight = 8;
  return options;
}

GrpcServerOptions ServiceOptions() {
  GrpcServerOptions options;
  options.limits.keys_per_call = kMaxKeys;
  options.limits.leases = kMaxLeases;
  options.limits.models = kMaxModels;
  options.tiers = 4;
  options.version = "fuzz";
  return options;
}

template <typename>
struct MethodTypes;
template <typename Req, typename Rep>
struct MethodTypes<GrpcService::Reactor* (GrpcService::*)(GrpcService::Context*, const Req*, Rep*)> {
  using Request = Req;
  using Reply = Rep;
};

/// Daemon without gRPC, sockets and threads: its service, its engine, and clients that send anything.
class World {
 public:
  World()
      : service_(ServiceOptions(), {.commands = harness_.commands(),
                                    .on_queued = [] {},
                                    .registry = registry_,
                                    .metrics = harness_.metrics(),
                                    .clock = harness_.clock(),
                                    .events = hub_}) {
    for (size_t i = 0; i < kSessions; ++i) Open(i);
    harness_.fake().job_fault = [this](const Job& job) -> std::optional<Status> {
      if (!next_fault_ || std::holds_alternative<DestroyArenaJob>(job.work)) return std::nullopt;
      return std::exchange(next_fault_, std::nullopt);
    };
    harness_.fake().cold_fault = [this](const ColdJob&) { return std::exchange(next_fault_, std::nullopt); };
  }

  void Run(InputReader& input) {
    for (size_t step = 0; step < kMaxSteps && !input.empty(); ++step) {
      const uint8_t what = input.Next() % kSteps;
      if (what < kStep) {
        CallMethod(what, input);
      } else {
        Act(static_cast<CommandStep>(what), input);
      }
    }
    Finish();
  }
  /// Whether a request came as far as the engine.
  bool reached_engine() const { return reached_engine_; }

 private:
  struct Session {
    SessionId id;
    SessionToken token{};
    std::shared_ptr<ClientSession> client;
  };
  struct Call {
    virtual ~Call() = default;
    bool finished = false;
  };
  template <typename Request, typename Reply>
  struct CallOf : Call {
    Request request;
    Reply reply;
    grpc::CallbackServerContext context;
  };
  struct KnownModel {
    std::string name_space;
    uint64_t session;
  };

  void Act(CommandStep what, InputReader& input) {
    switch (what) {
      case kStep:
        harness_.StepOnly();
        return harness_.HoldJobs();
      case kRunJob:
        return RunOneJob(input.Next());
      case kFailJob: {
        constexpr Code kCodes[] = {Code::kUnavailable, Code::kResourceExhausted, Code::kInternal};
        next_fault_ = Status(kCodes[input.Next() % std::size(kCodes)], "injected");
        return;
      }
      case kAdvance:
        return harness_.clock().Advance(std::chrono::milliseconds(input.Next16()));
      case kOpen:
        return Open(input.Next() % kSessions);
      case kClose:
        return Close(input.Next() % kSessions);
      default:
        harness_.Settle();
        harness_.engine().CheckInvariants();
    }
  }

  /// As workers do, in any order; the committer works in its own.
  void RunOneJob(size_t number) {
    if (harness_.held() == 0) return;
    size_t index = number % harness_.held();
    if (!harness_.HeldIsHost(index)) {
      for (index = 0; harness_.HeldIsHost(index); ++index) continue;
    }
    harness_.RunHeld(index);
  }

  void Open(size_t index) {
    Session& session = sessions_[index];
    if (session.client) return;
    session.id = SessionId{++last_session_};
    session.token.fill(static_cast<std::byte>(last_session_));
    session.client = std::make_shared<ClientSession>();
    session.client->id = session.id;
    session.client->tenant_name = index == 2 ? "uid:2" : "uid:1";
    session.client->admin = index == 0;
    session.client->staging = SharedStaging();
    harness_.Open(session.id.value, session.client->tenant_name);
    if (index == 1) harness_.MapStore(session.id, kCxlTier);
    registry_.Add(session.token, session.client);
  }

  void Close(size_t index) {
    Session& session = sessions_[index];
    if (!session.client) return;
    registry_.Remove(session.token);
    harness_.Forget(session.id);
    ++owed_closes_;
    harness_.Send(CloseSession{session.id, [this](const auto&) { --owed_closes_; }}, std::chrono::hours(1));
    session = {};
  }

  bool IsOpen(SessionId id) const {
    return std::ranges::any_of(sessions_, [&](const Session& one) { return one.client && one.id == id; });
  }

  void CallMethod(uint8_t method, InputReader& input) {
    using Invoke = void (World::*)(size_t, std::span<const std::byte>);
    static constexpr std::array<Invoke, kStep> kMethods = {
        &World::InvokeOne<&GrpcService::RegisterModel>, &World::InvokeOne<&GrpcService::Lookup>,
        &World::InvokeOne<&GrpcService::Acquire>,       &World::InvokeOne<&GrpcService::Release>,
        &World::InvokeOne<&GrpcService::Renew>,         &World::InvokeOne<&GrpcService::Put>,
        &World::InvokeOne<&GrpcService::WaitTicket>,    &World::InvokeOne<&GrpcService::Prefetch>,
        &World::InvokeOne<&GrpcService::Cancel>,        &World::InvokeOne<&GrpcService::Remove>,
        &World::InvokeOne<&GrpcService::Stats>,         &World::InvokeOne<&GrpcService::ListModels>,
        &World::InvokeOne<&GrpcService::ListBlocks>,    &World::InvokeOne<&GrpcService::Demote>,
        &World::InvokeOne<&GrpcService::Evict>,         &World::InvokeOne<&GrpcService::Verify>,
        &World::InvokeOne<&GrpcService::Drain>};
    const uint8_t session = input.Next();
    const uint16_t bytes = input.Next16();
    (this->*kMethods[method])(session, input.Take(bytes));
  }

  template <auto method>
  void InvokeOne(size_t from, std::span<const std::byte> bytes) {
    using Request = typename MethodTypes<decltype(method)>::Request;
    using Reply = typename MethodTypes<decltype(method)>::Reply;
    auto call = std::make_unique<CallOf<Request, Reply>>();
    if (!call->request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    const Session& session = sessions_[from % kSessions];
    const uint64_t id = session.id.value;
    if (from != kTokenOfMessage) {
      call->request.set_session_token(session.token.data(), session.token.size());
    }
    auto* raw = call.get();
    const grpc::testing::DefaultReactorTestPeer peer(&call->context,
                                                     [this, raw, id](const grpc::Status& status) {
                                                       KVTIER_CHECK(!raw->finished);  // answered once
                                                       raw->finished = true;
                                                       if (status.ok())
                                                         CheckReply(id, raw->request, raw->reply);
                                                     });
    const size_t queued = harness_.commands_queued();
    calls_.push_back(std::move(call));
    (service_.*method)(&raw->context, &raw->request, &raw->reply);
    const bool reached = harness_.commands_queued() > queued;
    KVTIER_CHECK(reached != raw->finished);  // queued, or refused at once
    reached_engine_ |= reached;
  }

  template <typename Request, typename Reply>
  void CheckReply(uint64_t /*session*/, const Request&, const Reply&) {}

  void CheckReply(uint64_t session, const v1::RegisterModelRequest&, const v1::RegisterModelReply& reply) {
    KVTIER_CHECK(reply.name_space().size() == sizeof(NamespaceDigest));
    const auto known = name_spaces_.emplace(reply.model(), reply.name_space()).first;
    KVTIER_CHECK(known->second == reply.name_space());
    // What it resolved a spec to is a spec that it takes.
    KVTIER_CHECK(ParseSpec(reply.spec(), UINT64_MAX).ok());
    models_of_[session].insert(reply.model());
    KVTIER_CHECK(models_of_[session].size() <= kMaxModels);
  }
  void CheckReply(uint64_t /*session*/, const v1::LookupRequest& request, const v1::LookupReply& reply) {
    KVTIER_CHECK(reply.run().size() <= request.keys().size() / sizeof(Key));
  }
  void CheckReply(uint64_t session, const v1::AcquireRequest& request, const v1::AcquireReply& reply) {
    const std::string keys = request.keys();
    KVTIER_CHECK(static_cast<size_t>(reply.run_size()) <= keys.size() / sizeof(Key));
    for (int i = 0; i < reply.run_size(); ++i) {
      KVTIER_CHECK(reply.run(i).key() == keys.substr(static_cast<size_t>(i) * sizeof(Key), sizeof(Key)));
      CheckBlock(session, request, reply.run(i));
    }
    for (const v1::AcquiredBlock& tail : reply.tails()) CheckBlock(session, request, tail);
  }
  void CheckReply(uint64_t /*session*/, const v1::PutRequest& request, const v1::PutReply& reply) {
    KVTIER_CHECK(reply.blocks_size() == request.blocks_size());
  }
  void CheckReply(uint64_t /*session*/, const v1::ListBlocksRequest& request,
                  const v1::ListBlocksReply& reply) {
    KVTIER_CHECK(static_cast<uint32_t>(reply.blocks_size()) <= std::max(request.limit(), 1u) ||
                 request.limit() == 0);
  }
  void CheckReply(uint64_t /*session*/, const v1::StatsRequest&, const v1::StatsReply& reply) {
    KVTIER_CHECK(reply.table_entries() <= kMaxEntries && reply.leases_live() <= kMaxLeases * kSessions);
    for (const v1::TierStats& tier : reply.tiers()) KVTIER_CHECK(tier.used_bytes() <= tier.capacity_bytes());
  }

  /// A wrong hit never: where the reply points stands the block that was asked for, of this tenant's model.
  void CheckBlock(uint64_t session, const v1::AcquireRequest& request, const v1::AcquiredBlock& block) {
    const SessionId id{session};
    if (!IsOpen(id)) return;  // it reads nothing any more, and the engine will be told
    KVTIER_CHECK(block.extents_size() == 1 && block.key().size() == sizeof(Key));
    const v1::Extent& extent = block.extents(0);
    KVTIER_CHECK(harness_.mapped(id).contains(extent.arena()));
    Place place;
    place.container = extent.arena();
    place.slot = extent.slot();
    place.offset = extent.offset();
    place.epoch = extent.slot_epoch();
    place.tier = kCxlTier;
    if (extent.arena() != StoreArenaId(kCxlTier).value) {
      const ArenaSpec& arena = harness_.published.at(extent.arena());
      KVTIER_CHECK(arena.tenant == harness_.tenant(id));
      KVTIER_CHECK(extent.offset() + extent.bytes() <= ArenaBytes(arena.slots, arena.slot_bytes));
      place.tier = arena.tier;
    }
    const auto image = harness_.fake().At(harness_.PlaceIn(place));
    KVTIER_CHECK(image && image->key.AsStringView() == block.key());
    KVTIER_CHECK(image->name_space.AsStringView() == name_spaces_.at(request.model()));
    KVTIER_CHECK(static_cast<uint32_t>(image->codec) == block.codec());
    KVTIER_CHECK(block.precision() >= request.min_precision());
  }

  void Finish() {
    harness_.Settle();
    harness_.engine().CheckInvariants();
    for (size_t i = 0; i < kSessions; ++i) Close(i);
    harness_.Settle();
    // Waits end with their deadline at the latest, which is a day away at most.
    for (int i = 0; i < 4; ++i) harness_.Advance(std::chrono::hours(7));
    harness_.engine().CheckInvariants();
    KVTIER_CHECK(owed_closes_ == 0);
    for (const auto& call : calls_) KVTIER_CHECK(call->finished);
    KVTIER_CHECK(harness_.engine().Outstanding() == 0);
    const Metrics& metrics = harness_.metrics();
    KVTIER_CHECK(metrics.leases_live.Get() == 0 && metrics.sessions.Get() == 0);
    KVTIER_CHECK(metrics.puts_offered.Get() == metrics.puts_stored.Get() + metrics.puts_present.Get() +
                                                   metrics.puts_rejected.Get() + metrics.puts_dropped.Get());
    KVTIER_CHECK(metrics.leases_granted.Get() == metrics.leases_released.Get() +
                                                     metrics.leases_expired.Get() +
                                                     metrics.leases_orphaned.Get());
  }

  std::list<std::unique_ptr<Call>> calls_;  ///< the engine's replies go there
  EngineHarness harness_{LadderOptions()};
  SessionRegistry registry_;
  EventHub hub_{harness_.metrics()};
  GrpcService service_;
  std::array<Session, kSessions> sessions_;
  std::map<uint32_t, std::string> name_spaces_;  ///< by model
  std::map<uint64_t, std::set<uint32_t>> models_of_;
  std::optional<Status> next_fault_;
  uint64_t last_session_ = 0;
  uint32_t owed_closes_ = 0;
  bool reached_engine_ = false;
};

}  // namespace

bool RunCommands(std::span<const std::byte> bytes) {
  InputReader input(bytes);
  World world;
  world.Run(input);
  return world.reached_engine();
}

}  // namespace kvtier
