#pragma once

#include <variant>

#include "daemon/engine/command.h"
#include "tiers/arena_store.h"

namespace kvtier {

/// What the engine thread hands to the session thread, in order.
struct SessionOpenedEvent {
  SessionId session;
  Result<OpenedSession> opened;
};
struct ArenaPublishedEvent {
  ArenaSpec arena;
};
struct SessionArenaEvent {
  SessionId session;
  ArenaSpec arena;
};
struct ArenaRetiredEvent {
  ArenaId arena;
  TenantId tenant;
};
/// From the main thread.
struct StoreWithdrawnEvent {
  TierId tier;
};
using EngineEvent = std::variant<SessionOpenedEvent, ArenaPublishedEvent, SessionArenaEvent,
                                 ArenaRetiredEvent, StoreWithdrawnEvent>;

}  // namespace kvtier
