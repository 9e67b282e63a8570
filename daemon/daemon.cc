#include "daemon/daemon.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "daemon/cold_tiers.h"
#include "daemon/engine/engine_thread.h"
#include "daemon/hot_tier.h"
#include "daemon/options.h"
#include "daemon/process.h"
#include "daemon/running_tiers.h"
#include "daemon/service/event_source.h"
#include "daemon/service/grpc_server.h"
#include "daemon/service/session_server.h"
#include "daemon/service/socket_path.h"
#include "monitoring/exporter.h"
#include "tiers/arena_store.h"
#include "tiers/base/units.h"
#include "tiers/cold_store.h"
#include "tiers/committer.h"
#include "tiers/transfer_worker.h"

namespace kvtier {
namespace {

/// A thread that shows no life for so long has stalled; one device operation may take kColdIoTimeout.
constexpr Duration kStalledAfter = std::chrono::seconds(10);
constexpr uint32_t kMaxDefaultWorkers = 4;

uint32_t WorkerCount(uint32_t configured) {
  return configured != 0 ? configured
                         : std::clamp(std::thread::hardware_concurrency(), 1u, kMaxDefaultWorkers);
}

/// Threads that share the layers of one block: with the worker, as many as there are workers.
uint32_t LayerHelperCount(uint32_t workers) {
  return std::min(workers, kMaxDefaultWorkers) - 1;
}

/// The threads of one tier's device, which takes them and no others when it hangs. A GPU has its own.
struct Device {
  explicit Device(size_t jobs) : moves(jobs), commits(jobs) {}
  BoundedQueue<Job> moves;
  BoundedQueue<ColdJob> commits;
  std::unique_ptr<TransferWorkers> workers;
  std::unique_ptr<Committer> committer;
};

class DaemonImpl final : public Daemon {
 public:
  DaemonImpl(const Config& config, std::string version)
      : config_(config),
        version_(std::move(version)),
        tiers_(config.tiers),
        commands_(config.limits.command_queue),
        jobs_(config.limits.jobs_in_flight),
        completions_((1 + 2 * config.tiers.size()) * config.limits.jobs_in_flight) {}
  ~DaemonImpl() override { Stop(); }

  Status Start() {
    const uint32_t workers = WorkerCount(config_.server.workers);
    KVTIER_ASSIGN(SocketLock lock, SocketLock::Take(config_.server.socket));
    lock_.emplace(std::move(lock));
    LeaveAbsentTiersOut(tiers_);
    gpu_ = PlaceHotTier(tiers_, MemoryLimitBytes(), workers, LayerHelperCount(workers), clock_);
    AddLandingTier(tiers_, config_.server.landing_bytes);
    KVTIER_TRY(CheckMemory(tiers_, MemoryLimitBytes()));
    KVTIER_ASSIGN(boot_id_, RandomId());
    KVTIER_TRY(StartExporter());
    KVTIER_TRY(TellAboutIo());
    KVTIER_TRY(OpenColdStores());
    KVTIER_TRY(BuildEngine());
    KVTIER_TRY(StartThreads());
    StartEvents();
    KVTIER_TRY(Serve());
    TellWhatRuns();  // before a probe hears that this is up
    ready_.store(true);
    return Status::Ok();
  }

  void Supervise() override {
    TellAboutCircuits();
    TellAboutGpu();
    WithdrawLostMemory();
    TellAboutThreads();
    event_source_->Look(engine_->draining());
    grpc_->TakeSnapshots();
  }

  bool Answers() const override {
    const TimePoint now = clock_.Now();
    return now - engine_thread_->LastStep() <= kStalledAfter && now - sessions_->last_beat() <= kStalledAfter;
  }

  void Stop() override {
    ready_.store(false);
    if (event_source_) event_source_->TellStopping();
    event_hub_.Close();
    // The engine still runs: ending the sessions cancels what calls wait for, so that gRPC can finish them.
    std::thread end_calls([this] {
      if (grpc_) grpc_->Stop();
    });
    if (sessions_) sessions_->Stop();
    end_calls.join();
    if (grpc_) ::unlink(config_.server.socket.c_str());
    grpc_.reset();
    if (engine_thread_) engine_thread_->Stop();
    if (workers_) workers_->Stop();
    if (gpu_) gpu_->Stop();
    for (const auto& device : devices_) {
      if (device && device->workers) device->workers->Stop();
      if (device && device->committer) device->committer->Stop();
    }
    exporter_.reset();
  }

 private:
  void TellAboutThreads() {
    const std::string problem = Problem(Threads::kAll);
    if (problem == last_problem_) return;
    if (problem.empty()) {
      spdlog::info("all threads make progress again");
    } else {
      spdlog::error("{}", problem);
    }
    // Only the change is added: threads that fail add themselves.
    metrics_.unhealthy_threads.Add((problem.empty() ? 0 : 1) - (last_problem_.empty() ? 0 : 1));
    last_problem_ = problem;
  }

  /// A full or failing device is shown by the tier's circuit. Puts go on without the tier: nobody else tells.
  void TellAboutCircuits() {
    for (size_t i = 0; i < tiers_.size(); ++i) {
      const bool open = metrics_.tier[i].circuit_open.Get() != 0;
      if (open == circuit_was_open_[i]) continue;
      circuit_was_open_[i] = open;
      if (open) {
        spdlog::warn("tier {}: writes fail ({} so far): it takes no blocks until one succeeds",
                     tiers_[i].name, metrics_.tier[i].write_errors.Get());
      } else {
        spdlog::info("tier {}: takes writes again", tiers_[i].name);
      }
    }
  }

  void TellAboutGpu() {
    if (!gpu_ || gpu_lost_) return;
    const Status usable = gpu_->Usable();
    gpu_lost_ = !usable.ok();
    if (gpu_lost_)
      spdlog::error("{}: its blocks are gone, and it is left alone until a restart", usable.message());
  }

  /// Where this process found bytes lost, a client would end on them.
  void WithdrawLostMemory() {
    for (size_t i = 0; i < cold_tiers_.size(); ++i) {
      const std::optional<SharedMemory>& shared = cold_tiers_[i].shared;
      if (!shared || store_withdrawn_[i] || !shared->store->lost()) continue;
      store_withdrawn_[i] = true;
      spdlog::error("tier {}: the memory lost bytes: clients have to unmap it", tiers_[i].name);
      event_source_->TellMemoryLost(i);
      sessions_->WithdrawStore(TierId{static_cast<uint8_t>(i)});
    }
  }

  Status StartExporter() {
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
    metrics_.start_time_s.Set(std::chrono::duration_cast<std::chrono::seconds>(since_1970).count());
    if (!config_.metrics.enabled) return Status::Ok();
    ExporterOptions options;
    options.host = config_.metrics.host;
    options.port = config_.metrics.port;
    options.version = version_;
    for (const TierConfig& tier : tiers_) options.tiers.push_back(tier.name);
    options.health = [this] { return Problem(Threads::kOfProcess); };
    options.readiness = [this] { return Unreadiness(); };
    KVTIER_ASSIGN(exporter_, Exporter::Make(std::move(options), metrics_));
    return Status::Ok();
  }

  void StartEvents() {
    std::vector<std::string> names;
    for (const TierConfig& tier : tiers_) names.push_back(tier.name);
    event_source_.emplace(metrics_, std::move(names), event_hub_);
  }

  /// Tries what the workers will do, to say so at the start and to refuse a setting that cannot work.
  Status TellAboutIo() {
    KVTIER_ASSIGN(const std::unique_ptr<BlockIo> probe, MakeBlockIo(config_.server.io));
    if (std::string_view(probe->name()) == "io_uring") {
      spdlog::info("file I/O by io_uring");
      metrics_.uring_active.Set(1);  // workers set it again, from the first job on
    } else {
      spdlog::warn("no io_uring: file I/O by plain calls");
    }
    return Status::Ok();
  }

  Status OpenColdStores() {
    cold_tiers_.resize(tiers_.size());
    for (size_t i = 0; i < tiers_.size(); ++i) {
      const TierConfig& tier = tiers_[i];
      metrics_.tier[i].numa_node.Set(-1);
      if (HasArenas(tier.kind)) continue;
      KVTIER_ASSIGN(cold_tiers_[i], OpenColdTier(tier, TierId{static_cast<uint8_t>(i)}, metrics_));
    }
    return Status::Ok();
  }

  Status BuildEngine() {
    SessionServerOptions session = SessionOptionsOf(config_);
    session.boot_id = boot_id_;
    KVTIER_ASSIGN(
        sessions_,
        SessionServer::Make(std::move(session),
                            {.commands = commands_,
                             .registry = registry_,
                             .arena_descriptor = [this](ArenaId arena) { return arenas_.Descriptor(arena); },
                             .metrics = metrics_,
                             .clock = clock_,
                             .events = event_hub_,
                             .stores = SharedStores(tiers_, cold_tiers_)}));
    EngineOptions options = EngineOptionsOf(config_, tiers_, cold_tiers_, arenas_, gpu_.get());
    std::vector<ColdRecovery> recovery;
    for (ColdTier& tier : cold_tiers_) recovery.push_back(std::move(tier.recovery));
    std::array<Engine::DeviceQueues, kMaxTiers> queues;
    for (size_t i = 0; i < tiers_.size(); ++i) {
      if (tiers_[i].kind == MediumKind::kHost) continue;
      devices_[i] = std::make_unique<Device>(config_.limits.jobs_in_flight);
      queues[i].moves = &devices_[i]->moves;
      if (cold_tiers_[i].store) queues[i].commits = &devices_[i]->commits;
    }
    KVTIER_ASSIGN(const auto seed, RandomId());
    std::memcpy(&options.hash_seed, seed.data(), sizeof(options.hash_seed));
    KVTIER_ASSIGN(engine_, Engine::Make(std::move(options),
                                        {.commands = commands_,
                                         .completions = completions_,
                                         .jobs = jobs_,
                                         .devices = queues,
                                         .events = *sessions_,
                                         .metrics = metrics_},
                                        std::move(recovery)));
    return Status::Ok();
  }

  Status StartThreads() {
    const auto wake_engine = [this] { commands_.Wake(); };
    const uint32_t workers = WorkerCount(config_.server.workers);
    KVTIER_ASSIGN(workers_, TransferWorkers::Make({.count = workers,
                                                   .layer_helpers = LayerHelperCount(workers),
                                                   .io = config_.server.io,
                                                   .on_completion = wake_engine},
                                                  jobs_, completions_, arenas_, metrics_));
    for (size_t i = 0; i < cold_tiers_.size(); ++i) {
      if (!devices_[i]) continue;
      Device& device = *devices_[i];
      if (tiers_[i].kind == MediumKind::kGpu) {
        KVTIER_TRY(gpu_->Start({.jobs = device.moves,
                                .completions = completions_,
                                .metrics = metrics_,
                                .on_completion = wake_engine}));
        continue;
      }
      KVTIER_ASSIGN(device.workers, TransferWorkers::Make({.count = workers,
                                                           .layer_helpers = LayerHelperCount(workers),
                                                           .io = config_.server.io,
                                                           .on_completion = wake_engine},
                                                          device.moves, completions_, arenas_, metrics_));
      const CommitterStore store{.tier = TierId{static_cast<uint8_t>(i)},
                                 .store = cold_tiers_[i].store.get()};
      device.committer =
          std::make_unique<Committer>(CommitterOptions{.io = config_.server.io, .on_completion = wake_engine},
                                      std::vector{store}, device.commits, completions_, metrics_);
      KVTIER_TRY(device.workers->Start());
      KVTIER_TRY(device.committer->Start());
    }
    engine_thread_ = std::make_unique<EngineThread>(*engine_, commands_, clock_, metrics_);
    KVTIER_TRY(workers_->Start());
    KVTIER_TRY(engine_thread_->Start());
    return Status::Ok();
  }

  Status Serve() {
    GrpcServerOptions options;
    options.socket_path = config_.server.socket;
    options.socket_mode = config_.server.socket_mode;
    options.default_deadline = std::chrono::milliseconds(config_.server.default_deadline_ms);
    options.limits = SessionLimitsOf(config_);
    options.tiers = static_cast<uint32_t>(tiers_.size());
    options.version = version_;
    KVTIER_ASSIGN(grpc_,
                  GrpcServer::Make(std::move(options), {.commands = commands_,
                                                        .on_queued = [this] { engine_thread_->StepHere(); },
                                                        .registry = registry_,
                                                        .metrics = metrics_,
                                                        .clock = clock_,
                                                        .events = event_hub_}));
    // Last: a session's welcome is the invitation to call.
    sessions_->Start();
    return Status::Ok();
  }

  void TellWhatRuns() const {
    std::string ladder;
    for (size_t i = 0; i < tiers_.size(); ++i) {
      const TierConfig& tier = tiers_[i];
      const std::string& medium =
          tier.kind == MediumKind::kGpu ? gpu_->facts().description : cold_tiers_[i].description;
      ladder += (ladder.empty() ? "" : ", ") + tier.name + " (" + FormatBytes(tier.capacity_bytes) + " " +
                (medium.empty() ? "host" : medium) + ", " + std::string(FindCodec(tier.codec)->name) + ")";
    }
    spdlog::info("kvtierd {} serves {} and {}{}; tiers {}; metrics {}", version_, config_.server.socket,
                 config_.server.socket, kSessionSocketSuffix, ladder,
                 exporter_
                     ? "http://" + config_.metrics.host + ":" + std::to_string(exporter_->port()) + "/metrics"
                     : "off");
  }

  /// kOfProcess: but for those that a tier's device can hold up. A restart mends no device, and would
  /// lose what the host tiers hold; its tier's circuit, the log and kvtier_unhealthy_threads show it.
  enum class Threads : uint8_t { kOfProcess, kAll };
  /// What is wrong with the threads; empty when nothing is, or while they are not all there. Any thread.
  std::string Problem(Threads which) const {
    if (!ready_.load()) return std::string();
    const TimePoint now = clock_.Now();
    std::string problem;
    const auto look = [&](const char* name, TimePoint last) {
      if (now - last <= kStalledAfter) return;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - last).count();
      problem += (problem.empty() ? "" : "; ") + std::string(name) + ": no progress for " +
                 std::to_string(seconds) + " s";
    };
    look("engine thread", engine_thread_->LastStep());
    look("a transfer worker", workers_->OldestProgress());
    for (const auto& device : devices_) {
      if (!device || !device->workers || which == Threads::kOfProcess) continue;
      look("a worker of a cold tier", device->workers->OldestProgress());
      look("committer", device->committer->LastProgress());
    }
    if (gpu_ && which == Threads::kAll) look("the GPU's thread", gpu_->last_progress());
    look("session thread", sessions_->last_beat());
    return problem;
  }

  /// Why clients should not come; empty: they may. Any thread.
  std::string Unreadiness() const {
    if (!ready_.load()) return "starting or stopping";
    return engine_->draining() ? "drained: takes no puts" : std::string();
  }

  const Config config_;
  const std::string version_;
  std::vector<TierConfig> tiers_;  ///< that run; fixed before anything is built
  std::optional<SocketLock> lock_;
  std::array<std::byte, 16> boot_id_{};

  // Destroyed bottom up: whatever stands lower may use what stands higher.
  SteadyClock clock_;
  Metrics metrics_;
  BoundedQueue<Command> commands_;
  BoundedQueue<Job> jobs_;
  BoundedQueue<Completion> completions_;
  SessionRegistry registry_;
  EventHub event_hub_{metrics_};
  std::optional<EventSource> event_source_;  ///< of the main thread
  ArenaStore arenas_;
  std::unique_ptr<GpuTier> gpu_;      ///< null: no tier is on one
  std::vector<ColdTier> cold_tiers_;  ///< by tier; without a store for host tiers
  std::unique_ptr<SessionServer> sessions_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineThread> engine_thread_;
  std::unique_ptr<TransferWorkers> workers_;
  std::array<std::unique_ptr<Device>, kMaxTiers> devices_;  ///< by tier; null for host tiers
  std::unique_ptr<GrpcServer> grpc_;
  std::atomic<bool> ready_{false};
  std::string last_problem_;
  std::array<bool, kMaxTiers> circuit_was_open_{};
  bool gpu_lost_ = false;
  std::array<bool, kMaxTiers> store_withdrawn_{};
  std::unique_ptr<Exporter> exporter_;
};

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::Make(const Config& config, const std::string& version) {
  auto daemon = std::make_unique<DaemonImpl>(config, version);
  KVTIER_TRY(daemon->Start());
  return std::unique_ptr<Daemon>(std::move(daemon));
}

}  // namespace kvtier
