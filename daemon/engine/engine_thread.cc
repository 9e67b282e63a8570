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

EngineThread::EngineThread(EngineThreadOptions options, Engine& engine, BoundedQueue<Command>& commands,
                           const Clock& clock, Metrics& metrics)
    : options_(options), engine_(engine), commands_(commands), clock_(clock), metrics_(metrics) {}

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
    const TimePoint now = clock_.Now();
    const TimePoint due = StepSafely(now);
    last_step_.store(now, std::memory_order_relaxed);
    if (stopping_.load() && MayStop(now)) return;
    if (due > now) Wait(now, due);
  }
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
  const TimePoint spin_until = std::min(due, now + options_.spin);
  while (options_.spin > Duration{} && clock_.Now() < spin_until) {
    if (commands_.size() > 0) return;
  }
  const Duration longest = stopping_.load() ? kPauseAfterFailure : kMaxSleep;
  commands_.WaitUntil(std::min(due, now + longest));
}

}  // namespace kvtier
