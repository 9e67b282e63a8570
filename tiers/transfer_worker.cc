#include "tiers/transfer_worker.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>
#include <system_error>
#include <utility>

namespace kvtier {
namespace {

constexpr uint32_t kMaxWorkers = 256;
/// How long a worker waits for a job before it shows that it is alive.
constexpr std::chrono::milliseconds kPopSlice{100};
/// Between two tries to hand over a completion to a full queue.
constexpr std::chrono::milliseconds kFullQueuePause{1};
static_assert(kMaxBatchJobs * kColdParts <= kMaxIoInFlight);

TimePoint Now() {
  return SteadyClock().Now();
}

/// Jobs of the same medium and direction can share a submission; none without a medium.
struct BatchKey {
  const Medium* medium = nullptr;
  bool reads = false;
  uint64_t bytes = 0;
};

BatchKey KeyOf(const Job& job) {
  const auto* move = std::get_if<MoveJob>(&job.work);
  if (move == nullptr) return {};
  const MoveOrder& order = move->order;
  const bool from_device = !order.staged.has_value() && order.source_medium->likes_batches();
  const bool to_device = order.target_medium->likes_batches();
  const bool in_parts = order.target_tails[0].bytes > 0;  // writes that have an order of their own
  if (from_device == to_device || in_parts) return {};
  uint64_t bytes = from_device ? order.source.bytes : order.target.bytes;
  if (from_device) {
    for (const Place& tail : order.source_tails) bytes += tail.bytes;
  }
  if (bytes > kMaxBatchedBlockBytes) return {};
  return {from_device ? order.source_medium : order.target_medium, from_device, bytes};
}

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

Result<std::unique_ptr<TransferWorkers>> TransferWorkers::Make(TransferWorkersOptions options,
                                                               BoundedQueue<Job>& jobs,
                                                               BoundedQueue<Completion>& completions,
                                                               ArenaStore& arenas, Metrics& metrics) {
  if (options.count == 0 || options.count > kMaxWorkers) {
    return Status(Code::kInvalidArgument,
                  "the number of transfer workers must be 1 to " + std::to_string(kMaxWorkers));
  }
  return std::unique_ptr<TransferWorkers>(
      new TransferWorkers(std::move(options), jobs, completions, arenas, metrics));
}

TransferWorkers::TransferWorkers(TransferWorkersOptions options, BoundedQueue<Job>& jobs,
                                 BoundedQueue<Completion>& completions, ArenaStore& arenas, Metrics& metrics)
    : options_(std::move(options)),
      jobs_(jobs),
      completions_(completions),
      arenas_(arenas),
      metrics_(metrics) {}

TransferWorkers::~TransferWorkers() {
  Stop();
}

Status TransferWorkers::Start() {
  KVTIER_CHECK(workers_.empty());
  stopping_ = false;
  KVTIER_ASSIGN(crew_, LayerCrew::Make(options_.layer_helpers));
  for (uint32_t i = 0; i < options_.count; ++i) {
    auto worker = std::make_unique<Worker>();
    worker->last_progress = Now();
    try {
      worker->thread = std::thread([this, w = worker.get()] { Run(*w); });
    } catch (const std::system_error& error) {
      Stop();
      return Status(Code::kResourceExhausted,
                    std::string("no thread for a transfer worker: ") + error.what());
    }
    workers_.push_back(std::move(worker));
  }
  return Status::Ok();
}

void TransferWorkers::Stop() {
  stopping_ = true;
  // Wake ends one wait only; the others see the flag within a slice.
  jobs_.Wake();
  for (const auto& worker : workers_) worker->thread.join();
  workers_.clear();
  crew_.reset();
}

TimePoint TransferWorkers::OldestProgress() const {
  TimePoint oldest = TimePoint::max();
  for (const auto& worker : workers_) oldest = std::min(oldest, worker->last_progress.load());
  return oldest;
}

void TransferWorkers::Run(Worker& worker) {
  Tools tools;
  std::optional<Job> next;
  while (true) {
    std::optional<Job> job =
        next.has_value() ? std::exchange(next, std::nullopt) : jobs_.PopUntil(Now() + kPopSlice);
    worker.last_progress = Now();
    if (job.has_value()) {
      const BatchKey key = KeyOf(*job);
      std::vector<Job> jobs = Gather(std::move(*job), next);
      if (jobs.size() == 1) {
        Complete(Execute(std::move(jobs[0]), tools), worker);
      } else if (key.reads) {
        ReadTogether(std::move(jobs), tools, worker);
      } else {
        WriteTogether(std::move(jobs), tools, worker);
      }
    } else if (stopping_) {
      return;
    } else {
      tools.scratch.Trim();
      tools.bounces.clear();
    }
  }
}

/// The jobs that are queued behind `first` and can share a submission with it: this worker's share of them.
/// One that cannot is the next.
std::vector<Job> TransferWorkers::Gather(Job first, std::optional<Job>& next) {
  const BatchKey key = KeyOf(first);
  uint64_t bytes = key.bytes;
  std::vector<Job> jobs;
  jobs.push_back(std::move(first));
  if (key.medium == nullptr) return jobs;
  const size_t share = std::min(kMaxBatchJobs, (jobs_.size() + options_.count) / options_.count);
  while (jobs.size() < share && bytes < kMaxBatchBytes) {
    std::optional<Job> job = jobs_.TryPop();
    if (!job.has_value()) break;
    const BatchKey other = KeyOf(*job);
    if (other.medium != key.medium || other.reads != key.reads) {
      next = std::move(job);
      break;
    }
    bytes += other.bytes;
    jobs.push_back(*std::move(job));
  }
  return jobs;
}

/// What escapes from `call` costs its job only; the tools are made anew after the batch.
template <typename Call>
Status TransferWorkers::Supervised(Tools& tools, const Call& call) {
  const char* exception = nullptr;
  try {
    return call();
  } catch (const std::bad_alloc&) {
    exception = "out of memory";
  } catch (...) {
    exception = "exception";
  }
  tools.broken = true;
  metrics_.worker_restarts.Add();
  return Status(Code::kInternal, exception);
}

/// The job's own resources, such as staged memory, are free again when this returns.
Completion TransferWorkers::Execute(Job job, Tools& tools) {
  Completion completion{.id = job.id, .status = {}, .outcome = {}};
  completion.status = Supervised(tools, [&] { return Perform(job, tools, completion.outcome); });
  if (std::exchange(tools.broken, false)) {
    tools = {};
    completion.outcome = {};
  }
  return completion;
}

void TransferWorkers::ReadTogether(std::vector<Job> jobs, Tools& tools, Worker& worker) {
  std::vector<Medium::PartRead> reads;
  std::vector<size_t> begin;  // of each job's in `reads`
  const Status read = Supervised(tools, [&]() -> Status {
    KVTIER_TRY(Prepare(tools));
    for (const Job& job : jobs) {
      begin.push_back(reads.size());
      for (Medium::PartRead& part : SourceReads(std::get<MoveJob>(job.work).order)) reads.push_back(part);
    }
    if (tools.bounces.size() < reads.size()) tools.bounces.resize(reads.size());
    for (size_t i = 0; i < reads.size(); ++i) reads[i].bounce = &tools.bounces[i];
    std::get<MoveJob>(jobs[0].work).order.source_medium->ReadParts(reads, *tools.io);
    return Status::Ok();
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    Completion completion{.id = jobs[i].id, .status = read, .outcome = {}};
    if (read.ok()) {
      const size_t end = i + 1 < jobs.size() ? begin[i + 1] : reads.size();
      const std::span parts(reads.data() + begin[i], end - begin[i]);
      completion.status = Supervised(tools, [&] {
        return Move(std::get<MoveJob>(jobs[i].work).order, tools, completion.outcome, {.reads = parts});
      });
      if (completion.status.code() == Code::kInternal) completion.outcome = {};
    }
    Complete(std::move(completion), worker);
  }
  if (std::exchange(tools.broken, false)) tools = {};
}

void TransferWorkers::WriteTogether(std::vector<Job> jobs, Tools& tools, Worker& worker) {
  std::vector<Completion> completions;
  std::vector<Medium::PartWrite> writes;
  std::vector<size_t> job_of_write;
  Status prepared = Supervised(tools, [&]() -> Status {
    KVTIER_TRY(Prepare(tools));
    if (tools.bounces.size() < jobs.size()) tools.bounces.resize(jobs.size());
    return Status::Ok();
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    Completion& completion =
        completions.emplace_back(Completion{.id = jobs[i].id, .status = prepared, .outcome = {}});
    if (!prepared.ok()) continue;
    Medium::PartWrite write;
    std::swap(tools.scratch.target, tools.bounces[i]);  // each keeps its image until all are written
    completion.status = Supervised(tools, [&] {
      return Move(std::get<MoveJob>(jobs[i].work).order, tools, completion.outcome, {.write = &write});
    });
    std::swap(tools.scratch.target, tools.bounces[i]);
    if (!completion.status.ok()) continue;
    writes.push_back(write);
    job_of_write.push_back(i);
  }
  Medium& medium = *std::get<MoveJob>(jobs[0].work).order.target_medium;
  const Status wrote = Supervised(tools, [&] {
    if (!writes.empty()) medium.FinishWrites(writes, *tools.io);
    return Status::Ok();
  });
  for (size_t i = 0; i < writes.size(); ++i) {
    Completion& completion = completions[job_of_write[i]];
    completion.status = wrote.ok() ? writes[i].status : wrote;
    if (!completion.status.ok()) completion.outcome = {};
  }
  jobs.clear();  // their staged memory is free before anybody hears of it
  for (Completion& completion : completions) Complete(std::move(completion), worker);
  if (std::exchange(tools.broken, false)) tools = {};
}

Status TransferWorkers::Prepare(Tools& tools) {
  if (tools.io != nullptr) return Status::Ok();
  KVTIER_ASSIGN(tools.io, MakeBlockIo(options_.io));
  metrics_.uring_active.Set(std::string_view(tools.io->name()) == "io_uring" ? 1 : 0);
  tools.scratch.io = tools.io.get();
  return Status::Ok();
}

Status TransferWorkers::Move(const MoveOrder& order, Tools& tools, MoveOutcome& outcome,
                             const MoveTogether& together) {
  // With more blocks waiting than workers, sharing one would only cost switches.
  const bool alone = together.reads.empty() && together.write == nullptr && jobs_.size() == 0;
  tools.scratch.crew = alone ? crew_.get() : nullptr;
  const Status status = MoveBlock(order, tools.scratch, outcome, together);
  metrics_.codec_encode_bytes.Add(outcome.encoded_bytes);
  metrics_.codec_encode_ns.Add(outcome.encode_ns);
  return status;
}

Status TransferWorkers::Perform(const Job& job, Tools& tools, MoveOutcome& outcome) {
  KVTIER_TRY(Prepare(tools));
  return std::visit(Overloaded{
                        [&](const MoveJob& move) { return Move(move.order, tools, outcome); },
                        [&](const CreateArenaJob& create) { return arenas_.Create(create.spec); },
                        [&](const DestroyArenaJob& destroy) {
                          arenas_.Destroy(destroy.id);
                          return Status::Ok();
                        },
                        [&](const VerifyJob& verify) {
                          return VerifyBlock(verify.identity, verify.place, verify.tails, *verify.medium,
                                             tools.scratch, outcome);
                        },
                    },
                    job.work);
}

void TransferWorkers::Complete(Completion completion, Worker& worker) {
  while (!completions_.TryPush(std::move(completion))) {
    if (completions_.closed()) return;  // nobody is left to answer
    if (options_.on_completion) options_.on_completion();
    std::this_thread::sleep_for(kFullQueuePause);
    worker.last_progress = Now();
  }
  worker.last_progress = Now();
  if (options_.on_completion) options_.on_completion();
}

}  // namespace kvtier
