#include "tiers/cuda/gpu_worker.h"

#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "tiers/completion_queue.h"

namespace kvtier {
namespace {

/// How long it waits for a job before it shows that it is alive.
constexpr std::chrono::milliseconds kPopSlice{100};

TimePoint Now() {
  return SteadyClock().Now();
}

}  // namespace

GpuWorker::GpuWorker(Deps deps, uint32_t layer_helpers, std::function<void()> on_completion)
    : deps_(deps), layer_helpers_(layer_helpers), on_completion_(std::move(on_completion)) {}

GpuWorker::~GpuWorker() {
  Stop();
}

Status GpuWorker::Start() {
  KVTIER_CHECK(!thread_.joinable());
  stopping_ = false;
  KVTIER_ASSIGN(crew_, LayerCrew::Make(layer_helpers_));
  last_progress_ = Now();
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, std::string("no thread for a GPU: ") + error.what());
  }
  return Status::Ok();
}

void GpuWorker::Stop() {
  stopping_ = true;
  if (!thread_.joinable()) return;
  deps_.jobs.Wake();
  thread_.join();
  crew_.reset();
}

Status GpuWorker::Guard(const std::function<Status()>& call) {
  const char* exception = nullptr;
  try {
    return call();
  } catch (const std::bad_alloc&) {
    exception = "out of memory";
  } catch (...) {
    exception = "exception";
  }
  deps_.metrics.worker_restarts.Add();
  return Status(Code::kInternal, exception);
}

void GpuWorker::Run() {
  GpuJobs runner(deps_.device, deps_.arenas, [this](const auto& call) { return Guard(call); });
  std::vector<Job> jobs;
  std::vector<Completion> ended;
  while (true) {
    std::optional<Job> job = deps_.jobs.PopUntil(Now() + kPopSlice);
    last_progress_ = Now();
    if (!job.has_value()) {
      if (stopping_) return;
      runner.Trim();
      continue;
    }
    uint64_t bytes = 0;
    while (job.has_value()) {
      bytes += GpuJobs::Bytes(*job);
      jobs.push_back(*std::move(job));
      job.reset();
      if (jobs.size() < kMaxGpuJobs && bytes < kMaxGpuJobsBytes) job = deps_.jobs.TryPop();
    }
    runner.Run(jobs, ended, crew_.get());
    Complete(ended, deps_.completions, on_completion_, last_progress_);
    ended.clear();
  }
}

}  // namespace kvtier
