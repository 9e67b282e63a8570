#pragma once

#include <atomic>
#include <thread>

#include "daemon/engine/engine.h"

namespace kvtier {

struct EngineThreadOptions {
  /// How long the thread looks for new commands before it sleeps: saves a wake-up (tens of microseconds)
  /// where commands follow each other closely, for the price of a busy core.
  Duration spin{};
};

/// The owner thread of an engine: steps it when there is a command, a completion or something due. An
/// exception that escapes a step is counted (worker_restarts), turns health red until a step works again, and
/// the loop goes on. Threads: Start, Stop and the destructor on one thread; LastStep on any. Whoever queues a
/// completion wakes the thread by commands.Wake().
class EngineThread {
 public:
  /// Everything outlives the thread.
  EngineThread(EngineThreadOptions options, Engine& engine, BoundedQueue<Command>& commands,
               const Clock& clock, Metrics& metrics);
  ~EngineThread();

  /// Errors: kResourceExhausted when the system gives no thread.
  Status Start();
  /// Answers what is queued and waits for what is owed, at most kStopGrace, then joins. Idempotent.
  void Stop();

  /// Older than a few seconds means that a step hangs.
  TimePoint LastStep() const { return last_step_.load(std::memory_order_relaxed); }

  static constexpr Duration kStopGrace = std::chrono::seconds(2);

 private:
  void Run();
  TimePoint StepSafely(TimePoint now);
  bool MayStop(TimePoint now);
  void Wait(TimePoint now, TimePoint due);

  const EngineThreadOptions options_;
  Engine& engine_;
  BoundedQueue<Command>& commands_;
  const Clock& clock_;
  Metrics& metrics_;
  std::thread thread_;
  std::atomic<TimePoint> last_step_{TimePoint{}};
  std::atomic<bool> stopping_{false};
  TimePoint stop_by_{};
  bool unhealthy_ = false;
};

}  // namespace kvtier
