#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/engine/command.h"
#include "daemon/service/event_hub.h"
#include "daemon/service/session_registry.h"
#include "daemon/service/session_server.h"
#include "monitoring/metrics.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/base/clock.h"

namespace kvtier {

struct GrpcServerOptions {
  std::string socket_path;
  uint32_t socket_mode = kOwnerOnly;
  Duration default_deadline = std::chrono::milliseconds(100);
  SessionLimits limits;
  uint32_t tiers = 1;
  std::string version;
};

/// The command plane: proto/kvtier.proto on a UNIX socket. Every call is checked on a gRPC
/// thread, becomes one Command, and is answered from the engine's reply. Threads: gRPC's own. Owns: the
/// socket. Errors: a full command queue answers RESOURCE_EXHAUSTED.
class GrpcServer {
 public:
  struct Deps {
    BoundedQueue<Command>& commands;
    /// Called after each command was queued, quietly: lets the engine see to it.
    std::function<void()> on_queued;
    SessionRegistry& registry;
    Metrics& metrics;
    const Clock& clock;
    EventHub& events;
  };
  /// Serves at once. Changes the umask for a moment: call it before other threads create files.
  /// Errors: those of PrepareSocketPath; kUnavailable when gRPC cannot listen.
  static Result<std::unique_ptr<GrpcServer>> Make(GrpcServerOptions options, Deps deps);
  virtual ~GrpcServer() = default;
  /// Refuses new calls and returns when the engine has answered all that are queued. Idempotent.
  virtual void Stop() = 0;
  /// Asks the engine for the snapshots that watchers are due. To be called about once a second.
  virtual void TakeSnapshots() = 0;
};

inline constexpr int kMaxGrpcMessageBytes = 4 << 20;

}  // namespace kvtier
