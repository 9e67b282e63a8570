#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/engine/command.h"
#include "daemon/engine/engine.h"
#include "daemon/service/event_hub.h"
#include "daemon/service/identity.h"
#include "daemon/service/session_registry.h"
#include "daemon/service/socket_path.h"
#include "monitoring/metrics.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/base/clock.h"
#include "tiers/cold_format.h"

namespace kvtier {

/// The memory of a cold tier that the clients of one tenant may map. Its segments start at kCxlMetaBytes.
struct SharedStore {
  TierId tier;
  std::string tenant;   ///< by name
  int descriptor = -1;  ///< open for reading alone; as long as the server lives
  uint64_t bytes = 0;   ///< to be mapped
  uint32_t segments = 0;
  uint64_t segment_bytes = 0;
  StoreUuid uuid{};
};

/// What a welcome tells the client.
struct SessionLimits {
  uint32_t keys_per_call = kMaxKeysPerCall;
  uint64_t block_bytes = uint64_t{64} << 20;
  uint32_t leases = 4096;
  uint32_t models = 64;
  uint32_t lease_ttl_ms = 10'000;
  uint32_t max_lease_ttl_ms = 60'000;
};

struct SessionServerOptions {
  std::string socket_path;
  uint32_t socket_mode = kOwnerOnly;
  IdentityOptions identity;
  std::array<std::byte, 16> boot_id{};
  uint64_t staging_bytes = uint64_t{64} << 20;
  uint64_t staging_total_bytes = uint64_t{8} << 30;
  uint32_t sessions = 1024;
  SessionLimits limits;
  uint32_t event_queue = 65'536;  ///< arena events that may wait for the session thread
};

/// The session socket: who a client is, which memory it may map, and whether it still lives.
/// Threads: one of its own between Start and Stop; EngineEvents are called on the engine thread and never
/// block. When
///   more events wait than fit, every session is ended: clients come back and are told of all arenas anew.
/// Owns: the socket file, every connection and its staging memory.
/// Errors: a client that breaks the protocol, or does not read what it is sent, is disconnected.
class SessionServer : public EngineEvents {
 public:
  struct Deps {
    BoundedQueue<Command>& commands;
    SessionRegistry& registry;
    /// The descriptor of an arena; valid while a session has not acknowledged its end.
    std::function<Result<int>(ArenaId)> arena_descriptor;
    Metrics& metrics;
    const Clock& clock;
    EventHub& events;  ///< told of sessions
    std::vector<SharedStore> stores = {};
  };
  /// Binds the socket. Errors: those of ListenSeqPacket.
  static Result<std::unique_ptr<SessionServer>> Make(SessionServerOptions options, Deps deps);

  virtual void Start() = 0;
  /// Ends every session (the engine is told) and the thread. Idempotent.
  virtual void Stop() = 0;
  /// The memory of the tier can end who touches it: clients unmap it, and it is offered no more. Any thread.
  virtual void WithdrawStore(TierId tier) = 0;
  /// When the thread last went round its loop, which it does twice a second at least.
  virtual TimePoint last_beat() const = 0;
};

}  // namespace kvtier
