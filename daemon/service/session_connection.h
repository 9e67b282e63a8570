#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>

#include "daemon/service/session_registry.h"
#include "daemon/service/session_wire.h"
#include "tiers/arena_store.h"
#include "tiers/base/clock.h"
#include "tiers/base/unique_fd.h"

namespace kvtier {

/// One peer of the session socket; state of the session thread alone (single-owner).
struct SessionConnection {
  enum class State : uint8_t {
    kHello,    ///< connected, has not said hello
    kOpening,  ///< the engine is opening the session
    kOpen,     ///< welcomed
  };
  enum class ArenaState : uint8_t {
    kOffered,
    kMapped,  ///< a store, and it said so
    kRetired
  };
  /// A datagram that waits for room in the socket, with the descriptor that goes with it.
  struct Outgoing {
    enum class Attach : uint8_t { kNothing, kStaging, kArena, kStore } attach = Attach::kNothing;
    ArenaId arena;
    std::string bytes;
  };

  UniqueFd socket;
  UniqueFd process;  ///< readable when the peer's process has ended
  Peer peer;
  State state = State::kHello;
  TimePoint connected_at;
  std::shared_ptr<ClientSession> session;  ///< from the hello on
  TenantId tenant;                         ///< once open
  SessionToken token{};
  bool maps_stores = false;
  UniqueFd staging;  ///< until the welcome is sent
  std::unordered_map<ArenaId, ArenaState> arenas;
  std::deque<Outgoing> outbox;
  bool waits_for_room = false;  ///< EPOLLOUT is armed
};

inline constexpr size_t kMaxOutbox = 8192;       ///< datagrams to one client that does not read
inline constexpr int kMaxDatagramsPerWake = 16;  ///< of one client, before others get a turn
inline constexpr size_t kMaxClientNameBytes = 64;
/// Connections that have not said hello; more wait to be accepted. As many as may well start at one moment.
inline constexpr uint32_t kMaxWaitingForHello = 256;
inline constexpr Duration kHelloTimeout = std::chrono::seconds(5);
inline constexpr Duration kOpenTimeout = std::chrono::seconds(5);

}  // namespace kvtier
