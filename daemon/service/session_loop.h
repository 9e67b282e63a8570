#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <unordered_map>

#include "daemon/service/engine_event.h"
#include "daemon/service/session_connection.h"
#include "daemon/service/session_server.h"

namespace kvtier::v1 {
class DaemonMessage;
class Hello;
}  // namespace kvtier::v1

namespace kvtier {

/// The state machine behind SessionServer: connections, sessions and what the engine is owed.
/// Threads: Post and RequestStop from any; the rest on the session thread (single-owner).
class SessionLoop {
 public:
  SessionLoop(SessionServerOptions options, SessionServer::Deps deps, UniqueFd listener, UniqueFd epoll,
              UniqueFd wake);

  /// From the engine thread. Never blocks; when the queue is full all sessions will be ended instead.
  void Post(EngineEvent event);
  /// Makes Run end every session and return.
  void RequestStop();
  void Run();
  /// What Run does, step by step: Begin, Turn until it is to stop, Drain.
  bool Begin();
  /// Waits for something to do, half a second at most.
  void Turn();
  /// Ends every session.
  void Drain();
  TimePoint last_beat() const { return TimePoint(Duration(last_beat_ns_.load(std::memory_order_relaxed))); }

 private:
  using Serial = uint64_t;  ///< names a connection; never reused
  // What epoll tells apart: the two descriptors of the loop, then two tags for each connection.
  static constexpr uint64_t kListenerTag = 0, kWakeTag = 1;
  static constexpr uint64_t SocketTag(Serial serial) { return serial * 2; }
  static constexpr uint64_t ProcessTag(Serial serial) { return serial * 2 + 1; }

  void Accept();
  /// Leaves new connections in the listener's backlog: epoll would report them again and again.
  void PauseAccepting();
  void SweepTimeouts(TimePoint now);
  void Dispatch(uint64_t tag, uint32_t events);

  void ReadFrom(Serial serial);
  bool HandleDatagram(Serial serial, SessionConnection& connection, std::string_view bytes);
  bool HandleHello(Serial serial, SessionConnection& connection, const v1::Hello& hello);
  Status Admit(Serial serial, SessionConnection& connection, const v1::Hello& hello);
  Status HandleMapped(SessionConnection& connection, ArenaId store);
  Status HandleUnmapped(SessionConnection& connection, ArenaId arena);
  /// Says why, counts it, and closes. Always false, for "return Refuse(...)".
  bool Refuse(Serial serial, const Status& why);

  void HandleEvents();
  void Handle(SessionOpenedEvent& event);
  void Handle(const ArenaPublishedEvent& event);
  void Handle(const SessionArenaEvent& event);
  void Handle(const ArenaRetiredEvent& event);
  void Handle(const StoreWithdrawnEvent& event);
  void Welcome(Serial serial, SessionConnection& connection);
  void Offer(SessionConnection& connection, const ArenaSpec& arena);
  void Offer(SessionConnection& connection, const SharedStore& store);
  void Retire(SessionConnection& connection, ArenaId arena);

  void Queue(SessionConnection& connection, const v1::DaemonMessage& message,
             SessionConnection::Outgoing::Attach attach, ArenaId arena);
  /// False when the connection must be closed.
  bool Flush(Serial serial, SessionConnection& connection);
  void FlushOrClose(Serial serial);
  void Close(Serial serial, std::string_view why);
  void CloseAll(std::string_view why);
  void TellChange(const ClientSession& session, v1::SessionChange::Kind kind, std::string_view reason);

  /// Commands that must not be lost: pushed now, or as soon as the engine's queue has room.
  void Owe(CommandBody body);
  void PayEngine();
  bool Watch(int fd, uint32_t events, uint64_t tag);

  const SessionServerOptions options_;
  SessionServer::Deps deps_;
  const IdentityMap identities_;
  const std::shared_ptr<StagingBudget> staging_budget_;
  UniqueFd listener_, epoll_, wake_;

  BoundedQueue<EngineEvent> events_;
  std::atomic<bool> events_lost_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> last_beat_ns_{0};

  Serial next_serial_ = 1;
  uint64_t next_session_ = 1;
  bool accepting_ = true;
  TimePoint accept_after_{};  ///< not before, where it could not be done
  uint32_t waiting_for_hello_ = 0;
  std::unordered_map<Serial, std::unique_ptr<SessionConnection>> connections_;
  std::unordered_map<SessionId, Serial> by_session_;
  std::set<ArenaId> withdrawn_;  ///< stores
  /// At most one CloseSession a session and one acknowledgement for each arena retired to it; of a store one
  /// that it is mapped, and two that it no longer is.
  std::deque<Command> owed_;
};

}  // namespace kvtier
