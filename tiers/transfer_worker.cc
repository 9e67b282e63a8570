#include "tiers/transfer_worker.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>
#include <system_error>
#include <utility>

#include "tiers/completion_queue.h"

namespace kvtier {
namespace {

constexpr uint32_t kMaxWorkers = 256;
/// How long a worker waits for a job before it shows that it is alive.
constexpr std::chrono::milliseconds kPopSlice{100};

TimePoint Now() {
  return SteadyClock().Now();
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
      streams_{.count = options_.count},
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
  TransferStream stream(jobs_, streams_, StreamCallbacks(tools, worker));
  std::optional<Job> next;
  while (true) {
    std::optional<Job> job =
        next.has_value() ? std::exchange(next, std::nullopt) : jobs_.PopUntil(Now() + kPopSlice);
    worker.last_progress = Now();
    if (!job.has_value()) {
      if (stopping_) return;
      tools.scratch.Trim();
      stream.Trim();
    } else if (CanStream(*job) && Supervised(tools, [&] { return Prepare(tools); }).ok()) {
      next = stream.Run(*std::move(job), *tools.io);
      if (std::exchange(tools.broken, false) || !tools.io->usable()) tools = {};
    } else {
      Completion completion = Execute(*std::move(job), tools);
      Complete({&completion, 1}, worker);
    }
  }
}

TransferStream::Callbacks TransferWorkers::StreamCallbacks(Tools& tools, Worker& worker) {
  return {.guard = [this, &tools](const auto& call) { return Supervised(tools, call); },
          .build =
              [this, &tools](const MoveOrder& order, std::span<Medium::PartRead> reads, MoveWrites& writes,
                             MoveOutcome& outcome, bool alone) {
                tools.scratch.crew = alone ? crew_.get() : nullptr;
                const Status status = BuildMove(order, reads, tools.scratch, writes, outcome);
                CountEncoding(outcome);
                return status;
              },
          .complete = [this, &worker](std::span<Completion> ended) { Complete(ended, worker); }};
}

/// What escapes from `call` costs its job only; the tools are made anew afterwards.
Status TransferWorkers::Supervised(Tools& tools, const std::function<Status()>& call) {
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

Status TransferWorkers::Prepare(Tools& tools) {
  if (tools.io != nullptr) return Status::Ok();
  KVTIER_ASSIGN(tools.io, MakeBlockIo(options_.io));
  metrics_.uring_active.Set(std::string_view(tools.io->name()) == "io_uring" ? 1 : 0);
  tools.scratch.io = tools.io.get();
  return Status::Ok();
}

void TransferWorkers::CountEncoding(const MoveOutcome& outcome) {
  metrics_.codec_encode_bytes.Add(outcome.encoded_bytes);
  metrics_.codec_encode_ns.Add(outcome.encode_ns);
  const bool encoded = outcome.encoded_bytes > 0 && !IsRawCodec(outcome.codec);
  if (encoded && outcome.any_raw_layer) metrics_.codec_raw_layer_blocks.Add();
}

Status TransferWorkers::Perform(const Job& job, Tools& tools, MoveOutcome& outcome) {
  KVTIER_TRY(Prepare(tools));
  return std::visit(Overloaded{
                        [&](const MoveJob& move) {
                          // With more blocks waiting than workers, sharing one would only cost switches.
                          tools.scratch.crew = jobs_.size() == 0 ? crew_.get() : nullptr;
                          const Status status = MoveBlock(move.order, tools.scratch, outcome);
                          CountEncoding(outcome);
                          return status;
                        },
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

void TransferWorkers::Complete(std::span<Completion> completions, Worker& worker) {
  kvtier::Complete(completions, completions_, options_.on_completion, worker.last_progress);
}

}  // namespace kvtier
