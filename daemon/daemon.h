#pragma once

#include <memory>
#include <string>

#include "daemon/config/config.h"

namespace kvtier {

/// A running kvtierd: every part built, wired and started, lowest floor first; stopped in reverse. The
/// composition root. Threads: Make, Supervise, Stop and the destructor on the main thread.
class Daemon {
 public:
  /// Serves when it returns. Errors: one clear line for whatever stands in the way; what was started is
  /// stopped again.
  static Result<std::unique_ptr<Daemon>> Make(const Config& config, const std::string& version);
  virtual ~Daemon() = default;

  /// Looks at every thread's heartbeat; to be called about once a second. Logs when one stalls or comes back.
  virtual void Supervise() = 0;
  /// Whether the threads that every call needs make progress; if not, a restart may help. A device that hangs
  /// does not count: the daemon serves without it, and a restart would lose what is in memory.
  virtual bool Answers() const = 0;
  /// Refuses new calls, ends the sessions, lets the engine finish what it owes, stops the threads.
  /// Idempotent.
  virtual void Stop() = 0;
};

}  // namespace kvtier
