#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "daemon/engine/engine.h"

namespace kvtier {

/// The owner thread of an engine: steps it when there is a command, a completion or something due. An
/// exception that escapes a step is counted (worker_restarts), turns health red until a step works again, and
/// the loop goes on. A thread that queued a command may take the ownership for one step (StepHere). Threads:
/// Start, Stop and the destructor on one thread; StepHere and LastStep on any. Whoever queues a completion
/// wakes the thread by commands.Wake().
class EngineThread {
 public:
  /// Everything outlives the thread.
  EngineThread(Engine& engine, BoundedQueue<Command>& commands, const Clock& clock, Metrics& metrics);
  ~EngineThread();

  /// Errors: kResourceExhausted when the system gives no thread.
  Status Start();
  /// Answers what is queued and waits for what is owed, at most kStopGrace, then joins. Idempotent.
  void Stop();

  /// After commands.TryPushQuietly: one step on the calling thread, which saves the switch to the engine
  /// thread and back; where somebody is stepping already, it wakes the engine thread instead. Never waits.
  void StepHere();

  /// Older than a few seconds means that a step hangs.
  TimePoint LastStep() const { return last_step_.load(std::memory_order_relaxed); }

  static constexpr Duration kStopGrace = std::chrono::seconds(2);

 private:
  void Run();
  /// One step by the holder of step_mutex_.
  TimePoint StepOwned(TimePoint now);
  TimePoint StepSafely(TimePoint now);
  bool MayStop(TimePoint now);
  void Wait(TimePoint now, TimePoint due);

  Engine& engine_;
  BoundedQueue<Command>& commands_;
  const Clock& clock_;
  Metrics& metrics_;
  std::thread thread_;
  std::mutex step_mutex_;                    ///< held by whoever owns the engine, for a step
  std::atomic<std::thread::id> stepping_{};  ///< that thread
  TimePoint sleeps_until_{};                 ///< of the engine thread; guarded by step_mutex_
  std::atomic<TimePoint> last_step_{TimePoint{}};
  std::atomic<bool> stopping_{false};
  TimePoint stop_by_{};
  bool unhealthy_ = false;
};

}  // namespace kvtier
