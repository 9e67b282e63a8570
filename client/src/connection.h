#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/src/arena_map.h"
#include "client/src/rpc.h"
#include "client/src/session_socket.h"
#include "client/src/staging.h"
#include "daemon/policy/model_spec.h"
#include "proto/kvtier.pb.h"
#include "tiers/base/ids.h"

namespace kvtier::client {

/// A model as the daemon resolved it: the same for every connection of one client.
struct Model {
  uint32_t number = 0;  ///< among the client's models
  v1::ModelSpec wire;   ///< what registers it again after a restart of the daemon
  ModelSpec spec;
  NamespaceDigest name_space;
};

/// Arenas that wait for their ArenaUnmapped message. Outlives the connection where a fetch does. Threads:
/// any.
class UnmappedQueue {
 public:
  UnmappedQueue();
  void Push(uint32_t arena);
  std::vector<uint32_t> TakeAll();
  int event_fd() const { return event_.get(); }

 private:
  UniqueFd event_;
  std::mutex mutex_;
  std::vector<uint32_t> arenas_;
};

/// One session with one run of the daemon. Leases, tickets and arenas belong to it and end with it.
/// Threads: Serve on the session thread; everything else any.
class Connection {
 public:
  struct Options {
    std::string socket;
    std::string client_name;
  };
  /// Gives up early once `stop_fd` becomes readable.
  /// Errors: kUnavailable when no daemon answers by `deadline`, the daemon's reason when it refuses;
  /// kResourceExhausted without the descriptors that a connection needs.
  static Result<std::shared_ptr<Connection>> Make(const Options& options, TimePoint deadline, int stop_fd);

  /// Handles the daemon's messages until the session ends or `stop_fd` becomes readable.
  void Serve(int stop_fd);

  bool alive() const { return alive_.load(std::memory_order_acquire); }
  /// Ends the session from this side: the daemon does not know it, or owes an answer for too long.
  void Abandon();

  const v1::Welcome& welcome() const { return welcome_; }
  const std::string& token() const { return welcome_.session_token(); }
  Rpc& rpc() { return rpc_; }
  ArenaMap& arenas() { return arenas_; }
  StagingPool& staging() { return staging_; }
  int session_fd() const { return socket_.fd(); }
  /// For leases and tickets: unique in the session.
  uint64_t NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  /// The daemon's number of a model, registered now where this connection has not yet done so.
  /// Errors: the daemon's; kFailedPrecondition when it answers with another namespace.
  Result<uint32_t> RemoteModel(const Model& model, TimePoint deadline);
  void RememberModel(uint32_t number, uint32_t remote);

 private:
  Connection(const Options& options, SessionSocket socket, v1::Welcome welcome, MappedMemory staging);

  /// False when the session is over.
  bool HandleMessages();
  void HandleOffer(const v1::ArenaOffer& offer, const UniqueFd& descriptor);
  void HandleOffer(const v1::StoreOffer& offer, const UniqueFd& descriptor);
  void SendAnswers();

  SessionSocket socket_;
  const v1::Welcome welcome_;
  std::atomic<bool> alive_ = true;
  std::shared_ptr<UnmappedQueue> unmapped_;
  std::deque<v1::ClientMessage> unsent_;  ///< session thread only
  ArenaMap arenas_;
  StagingPool staging_;
  std::atomic<uint64_t> next_id_ = 1;
  std::mutex models_mutex_;
  std::unordered_map<uint32_t, uint32_t> remote_models_;  ///< by Model::number
  Rpc rpc_;  ///< last, so first to go: replies under way use the others
};

}  // namespace kvtier::client
