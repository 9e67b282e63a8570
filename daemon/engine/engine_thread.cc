#include "daemon/engine/engine_thread.h"

#include <algorithm>
#include <system_error>

namespace kvtier {
namespace {

/// The heartbeat moves at least this often.
constexpr Duration kMaxSleep = std::chrono::milliseconds(500);
/// After a step that threw.
constexpr Duration kPauseAfterFailure = std::chrono::milliseconds(10);

}  // namespace

EngineThread::EngineThread(Engine& engine, BoundedQueue<Command>& commands, const Clock& clock,
                           Metrics& metrics)
    : engine_(engine), commands_(commands), clock_(clock), metrics_(metrics) {}

EngineThread::~EngineThread() {
  Stop();
}

Status EngineThread::Start() {
  last_step_.store(clock_.Now(), std::memory_order_relaxed);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, std::string("no thread for the engine: ") + error.what());
  }
  return Status::Ok();
}

void EngineThread::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  commands_.Wake();
  thread_.join();
}

void EngineThread::Run() {
  while (true) {
    TimePoint now, due;
    {
      std::lock_guard lock(step_mutex_);
      now = clock_.Now();
      due = StepOwned(now);
      if (stopping_.load() && MayStop(now)) return;
      sleeps_until_ = std::min(due, now + kMaxSleep);
    }
    if (due > now) Wait(now, due);
  }
}

void EngineThread::StepHere() {
  // A reply can lead gRPC back here, on a thread that is stepping.
  if (stepping_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return commands_.Wake();
  std::unique_lock lock(step_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return commands_.Wake();
  if (StepOwned(clock_.Now()) < sleeps_until_) commands_.Wake();
}

TimePoint EngineThread::StepOwned(TimePoint now) {
  stepping_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const TimePoint due = StepSafely(now);
  stepping_.store(std::thread::id{}, std::memory_order_relaxed);
  last_step_.store(now, std::memory_order_relaxed);
  return due;
}

TimePoint EngineThread::StepSafely(TimePoint now) {
  try {
    const TimePoint due = engine_.Step(now);
    if (unhealthy_) metrics_.unhealthy_threads.Add(-1);
    unhealthy_ = false;
    return due;
  } catch (...) {
    metrics_.worker_restarts.Add();
    if (!unhealthy_) metrics_.unhealthy_threads.Add(1);
    unhealthy_ = true;
    return now + kPauseAfterFailure;
  }
}

bool EngineThread::MayStop(TimePoint now) {
  if (stop_by_ == TimePoint{}) stop_by_ = now + kStopGrace;
  return now >= stop_by_ || (commands_.size() == 0 && engine_.Outstanding() == 0);
}

void EngineThread::Wait(TimePoint now, TimePoint due) {
  const Duration longest = stopping_.load() ? kPauseAfterFailure : kMaxSleep;
  commands_.WaitUntil(std::min(due, now + longest));
}

}  // namespace kvtier
