#include "daemon/engine/engine_impl.h"

#include <algorithm>
#include <utility>

#include "tiers/base/check.h"

namespace kvtier {
namespace {

Status Invalid(std::string text) {
  return Status(Code::kInvalidArgument, std::move(text));
}

Status CheckTier(const TierOptions& tier) {
  const std::string name = "tier \"" + tier.name + "\": ";
  if (tier.capacity_bytes == 0) return Invalid(name + "capacity is 0");
  if (tier.medium == nullptr) return Invalid(name + "has no medium");
  if (FindCodec(tier.codec) == nullptr) return Invalid(name + "codec is not in this build");
  if (!(tier.low_watermark > 0 && tier.low_watermark <= tier.high_watermark && tier.high_watermark <= 1)) {
    return Invalid(name + "watermarks must be 0 < low <= high <= 1");
  }
  if (!tier.tenant.empty() && tier.kind != MediumKind::kCxl)
    return Invalid(name + "only cxl is one tenant's");
  if (HasArenas(tier.kind)) return Status::Ok();
  if (tier.segment_bytes < 2 * kSlotAlign || tier.segment_bytes % kSlotAlign != 0) {
    return Invalid(name + "segment size must be a multiple of 4096, at least 8192");
  }
  // Memory that readers see change under them is no place for records that only count beside one another.
  if (tier.keep_tails && tier.kind != MediumKind::kNvme) return Invalid(name + "tails are for nvme only");
  if (SegmentLimitOf(tier) < 2) {
    return Invalid(name + "capacity is below two segments");
  }
  return Status::Ok();
}

Status CheckOptions(const EngineOptions& options, const Engine::Deps& deps, size_t recoveries) {
  if (options.tiers.empty() || options.tiers.size() > kMaxTiers) {
    return Invalid("there must be 1 to " + std::to_string(kMaxTiers) + " tiers");
  }
  bool any_host = false, only_gpus = true;
  for (const TierOptions& tier : options.tiers) {
    KVTIER_TRY(CheckTier(tier));
    any_host |= tier.kind == MediumKind::kHost;
    only_gpus &= tier.kind == MediumKind::kGpu;
    if (tier.kind == MediumKind::kGpu && !only_gpus) {
      return Invalid("tier \"" + tier.name + "\": a GPU goes above all other tiers");
    }
  }
  if (!any_host) return Invalid("there must be a host tier: what is read goes through it");
  if (recoveries > options.tiers.size()) return Invalid("more recoveries than tiers");
  const EngineLimits& limits = options.limits;
  if (limits.jobs_in_flight == 0) return Invalid("jobs_in_flight is 0");
  if (!(limits.lease_share > 0 && limits.lease_share <= 1)) return Invalid("lease_share must be in (0, 1]");
  const size_t least = limits.jobs_in_flight;
  bool enough = deps.jobs.capacity() >= least && deps.completions.capacity() >= least;
  for (size_t i = 0; i < options.tiers.size(); ++i) {
    if (options.tiers[i].kind == MediumKind::kHost) continue;
    const Engine::DeviceQueues& device = deps.devices[i];
    const bool commits = !HasArenas(options.tiers[i].kind);
    if (device.moves == nullptr || (commits && device.commits == nullptr)) {
      return Invalid("tier \"" + options.tiers[i].name + "\": has no queues to its device");
    }
    enough &= device.moves->capacity() >= least && (!commits || device.commits->capacity() >= least);
  }
  if (!enough) return Invalid("job and completion queues must hold jobs_in_flight");
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Make(EngineOptions options, Deps deps,
                                             std::vector<ColdRecovery> recovery) {
  KVTIER_TRY(CheckOptions(options, deps, recovery.size()));
  auto engine = std::make_unique<EngineImpl>(std::move(options), deps);
  engine->Recover(std::move(recovery));
  return std::unique_ptr<Engine>(std::move(engine));
}

EngineImpl::EngineImpl(EngineOptions options, Deps deps)
    : options_(std::move(options)),
      deps_(deps),
      metrics_(deps.metrics),
      table_(options_.limits.max_entries, options_.hash_seed),
      ladder_(options_.tiers, table_, models_, metrics_),
      sketch_(MakeSketch(options_)) {}

uint32_t EngineImpl::Tenths() const {
  using Unit = std::chrono::duration<uint64_t, std::deci>;
  return began_ ? static_cast<uint32_t>(std::chrono::duration_cast<Unit>(now_ - *began_).count()) : 0;
}

TimePoint EngineImpl::Step(TimePoint now) {
  now_ = now;
  if (!began_) began_ = now;
  budget_ = kKeysPerStep;
  TakeCompletions();
  FireTimers();
  WatchDevices();
  TakeCommands();
  const bool sweeping = AdvanceSweeps() | AdvanceLosses();
  Pump();
  AdvanceRemovals();
  AdvanceScrubs();
  DispatchJobs();
  PublishGauges();
  if (current_ || sweeping || pump_again_ || deps_.commands.size() > 0 || deps_.completions.size() > 0)
    return now_;
  return std::min(timers_.next(), NextDeviceLook());
}

void EngineImpl::TakeCompletions() {
  for (size_t left = deps_.completions.capacity(); left > 0; --left) {
    std::optional<Completion> completion = deps_.completions.TryPop();
    if (!completion) return;
    OnCompletion(*std::move(completion));
  }
}

void EngineImpl::TakeCommands() {
  uint32_t commands = kKeysPerStep;
  while (budget_ > 0) {
    if (!current_) {
      if (commands-- == 0) return;
      current_ = deps_.commands.TryPop();
      if (!current_) return;
      cursor_ = 0;
      const bool late = current_->deadline <= now_;
      if (late) {
        metrics_.commands_late.Add();
        const bool dropped = std::visit(
            [](auto& c) {
              // What frees something is never too late, nor what is said once only.
              using C = std::decay_t<decltype(c)>;
              if constexpr (std::is_same_v<C, StoreMapped> || std::is_same_v<C, ArenaUnmapped> ||
                            std::is_same_v<C, CloseSession> || std::is_same_v<C, Release> ||
                            std::is_same_v<C, Cancel>) {
                return false;
              } else {
                Fail(c.reply, Code::kDeadlineExceeded, "the command waited past its deadline");
                return true;
              }
            },
            current_->body);
        if (dropped) {
          current_.reset();
          continue;
        }
      }
    }
    if (!std::visit([this](auto& c) { return Handle(c); }, current_->body)) return;
    current_.reset();
  }
}

void EngineImpl::FireTimers() {
  while (std::optional<Timer> timer = timers_.PopDue(now_)) FireTimer(*timer);
}

void EngineImpl::FireTimer(const Timer& timer) {
  switch (timer.kind) {
    case TimerKind::kLease:
      return ExpireLease(SessionId{timer.a}, LeaseId{timer.b});
    case TimerKind::kTransfer:
      return AbortSeeking(TransferId{timer.a}, Code::kDeadlineExceeded);
    case TimerKind::kAcquire: {
      const auto op = acquires_.find(OpId{timer.a});
      if (op == acquires_.end()) return;
      Session* session = FindSession(op->second.session);
      CutAcquire(op->second, *session, op->second.ready_prefix, Code::kDeadlineExceeded);
      return FinishAcquire(OpId{timer.a});
    }
    case TimerKind::kPut:
      return ExpirePut(OpId{timer.a});
    case TimerKind::kTicketWait:
      return ExpireTicketWait(SessionId{timer.a}, timer.b);
    case TimerKind::kExpiry: {
      const EntryId id{static_cast<uint32_t>(timer.a)};
      const Entry& entry = table_.at(id);
      if (table_.live(id) && entry.generation == timer.b && entry.in_table) RemoveBlock(id, Reason::kExpired);
      return;
    }
    case TimerKind::kCircuit:
    case TimerKind::kReclaim:
    case TimerKind::kScrub:
      return;  // the step that they cause is what matters
  }
}

void EngineImpl::OnCompletion(Completion completion) {
  const auto found = jobs_.find(completion.id);
  KVTIER_CHECK(found != jobs_.end());
  const PendingJob job = found->second;
  jobs_.erase(found);
  NoteAnswer(job, completion.id);
  if (completion.device_lost && job.device) OnDeviceLost(ladder_.at(*job.device));
  OnJobDone(job, std::move(completion));
}

void EngineImpl::OnJobDone(const PendingJob& job, Completion completion) {
  switch (job.kind) {
    case PendingJob::Kind::kMove:
      return OnMoveDone(job.transfer, std::move(completion));
    case PendingJob::Kind::kCommit:
      return OnCommitDone(job.transfer, completion);
    case PendingJob::Kind::kCreateArena:
      return OnArenaCreated(job, completion.status);
    case PendingJob::Kind::kDestroyArena:
      return OnArenaDestroyed(job);
    case PendingJob::Kind::kVerify:
      return OnVerifyDone(job, completion);
    case PendingJob::Kind::kErase:
      ++ladder_.at(job.tier).forgets_done;
      // The records are dead for this engine already; a scan after a crash may find them, whole.
      if (completion.status.ok()) return;
      ++ladder_.at(job.tier).forgets_failed;
      ladder_.at(job.tier).metrics->write_errors.Add();
      return;
    case PendingJob::Kind::kRecycle:
      return OnRecycled(job, completion.status);
    case PendingJob::Kind::kRewrite:
      return OnRewritten(job, completion);
    case PendingJob::Kind::kRewriteCommit:
      return OnRewriteCommitted(job, completion.status);
    case PendingJob::Kind::kPutModel:
      return OnPutModelDone(job.model, job.tier, completion.status);
  }
}

JobId EngineImpl::Register(PendingJob pending) {
  const JobId id{next_id_++};
  pending.device = DeviceOf(pending);
  jobs_.emplace(id, pending);
  return id;
}

JobLane<Job>& EngineImpl::LaneOf(JobId id) {
  const std::optional<TierId> device = jobs_.at(id).device;
  return device ? ladder_.at(*device).moves : host_jobs_;
}

void EngineImpl::Enqueue(const PendingJob& pending, decltype(Job::work) work) {
  const JobId id = Register(pending);
  LaneOf(id).Add({.id = id, .work = std::move(work)});
}

void EngineImpl::EnqueueUrgent(const PendingJob& pending, decltype(Job::work) work) {
  const JobId id = Register(pending);
  LaneOf(id).AddUrgent({.id = id, .work = std::move(work)});
}

void EngineImpl::EnqueueCold(const PendingJob& pending, decltype(ColdJob::work) work) {
  const JobId id = Register(pending);
  ladder_.at(*jobs_.at(id).device).commits.Add({.id = id, .work = std::move(work)});
}

void EngineImpl::DispatchJobs() {
  const uint32_t limit = options_.limits.jobs_in_flight;
  for (Tier& tier : ladder_.tiers()) {
    if (tier.host()) continue;
    const DeviceQueues& device = deps_.devices[tier.id.value];
    if (tier.cold()) tier.commits.Dispatch(*device.commits, limit, now_);
    tier.moves.Dispatch(*device.moves, std::min(limit, kMaxDeviceMoves), now_);
  }
  host_jobs_.Dispatch(deps_.jobs, limit, now_);
}

void EngineImpl::PublishGauges() {
  ladder_.PublishGauges();
  metrics_.table_entries.Set(static_cast<int64_t>(table_.live_rows()));
  uint64_t table_bytes = table_.bytes();
  for (const Tier& tier : ladder_.tiers()) table_bytes += tier.tails.bytes();
  metrics_.table_bytes.Set(static_cast<int64_t>(table_bytes));
  metrics_.sessions.Set(static_cast<int64_t>(sessions_.size()));
  metrics_.models.Set(static_cast<int64_t>(models_.models().size()));
  metrics_.command_queue_depth.Set(static_cast<int64_t>(deps_.commands.size()));
  metrics_.job_queue_depth.Set(static_cast<int64_t>(jobs_.size()));
}

uint64_t EngineImpl::Outstanding() const {
  uint64_t waits = 0;
  for (const auto& [id, session] : sessions_) {
    for (const auto& [ticket_id, ticket] : session.tickets) waits += ticket.waits.size();
  }
  return jobs_.size() + transfers_.size() + puts_.size() + acquires_.size() + prefetches_.size() +
         sweeps_.size() + removals_.size() + rewrites_.size() + waits + (current_ ? 1 : 0);
}

}  // namespace kvtier
