#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/src/completions.h"
#include "client/src/connection.h"
#include "client/src/fetch_pool.h"

namespace kvtier::client {

class LayerFetch;
class Progress;

/// A put, prefetch or fetch under way.
struct Ticket {
  enum class Kind : uint8_t { kPut, kPrefetch, kFetch };
  Kind kind = Kind::kPut;
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Progress> progress;    ///< null for a fetch
  std::shared_ptr<LayerFetch> fetch;     ///< null for others
  std::vector<uint64_t> remote_tickets;  ///< the daemon's names of its parts
};

/// What kvtier_open opens: keeps a connection up, with one background thread, and knows the models to
/// register on it. Threads: any.
class Client {
 public:
  struct Options {
    Connection::Options connection;
    Duration timeout = std::chrono::milliseconds(100);
    uint32_t fetch_threads = 1;
  };
  /// Errors: kUnavailable when no daemon answers within the time-out; the daemon's reason when it refuses.
  static Result<std::shared_ptr<Client>> Open(Options options);
  ~Client();
  /// Ends the session and the thread. Calls under way end as misses.
  void Close();

  TimePoint Deadline(uint32_t timeout_ms) const;
  /// The live connection; waits for one only while the first attempt to connect again is under way.
  /// Errors: kUnavailable at once while the daemon is away; kDeadlineExceeded.
  Result<std::shared_ptr<Connection>> Current(TimePoint deadline);

  /// Runs `call(connection)` and once more on a new connection where the daemon did not know the session any
  /// more.
  template <typename Call>
  Status OnConnection(TimePoint deadline, Call&& call) {
    KVTIER_ASSIGN(std::shared_ptr<Connection> connection, Current(deadline));
    const Status status = call(connection);
    if (!SessionLost(*connection, status)) return status;
    connection->Abandon();
    KVTIER_ASSIGN(connection, Current(deadline));
    return call(connection);
  }

  Result<std::shared_ptr<const Model>> RegisterModel(v1::ModelSpec spec, TimePoint deadline);

  /// Tells completions() when it ends. Bounded: the oldest ones that nobody waits for are forgotten first.
  uint64_t AddTicket(Ticket ticket);
  /// Errors: kStale.
  Result<Ticket> FindTicket(uint64_t id) const;
  void DropTicket(uint64_t id);

  Completions& completions() { return *completions_; }
  FetchPool& fetches() { return fetches_; }

  /// In the child of a fork: closes the session's descriptor, so that the daemon sees the end of the parent.
  void CloseDescriptorInChild() const;

 private:
  enum class State : uint8_t { kConnecting, kUp, kDown, kClosed };

  explicit Client(Options options);
  static bool SessionLost(const Connection& connection, const Status& status);
  void Run();
  Result<std::shared_ptr<Connection>> ConnectOnce();
  void Publish(State state, std::shared_ptr<Connection> connection, Status why);
  /// Tickets end with their session.
  void DropTicketsOf(const Connection& connection);
  /// False when the client closes.
  bool Pause(Duration duration) const;

  const Options options_;
  UniqueFd stop_event_;
  std::atomic<int> session_fd_ = -1;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kConnecting;
  Status why_down_;
  std::shared_ptr<Connection> connection_;
  std::vector<std::shared_ptr<const Model>> models_;
  std::unordered_map<uint64_t, Ticket> tickets_;
  std::deque<uint64_t> ticket_order_;
  uint64_t next_ticket_ = 1;
  /// Shared with what is under way, which may end after the client.
  const std::shared_ptr<Completions> completions_;
  FetchPool fetches_;

  std::thread thread_;
};

}  // namespace kvtier::client
