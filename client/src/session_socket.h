#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/session.pb.h"
#include "tiers/base/clock.h"
#include "tiers/base/status.h"
#include "tiers/base/unique_fd.h"

namespace kvtier::client {

/// One message of the daemon's with the descriptor that came along.
struct SessionMessage {
  v1::DaemonMessage body;
  UniqueFd descriptor;
};

/// The client's end of the session socket (proto/session.proto). Threads: Receive on one thread, Send and
/// Shutdown on any.
class SessionSocket {
 public:
  /// Connects and says hello. Errors: kUnavailable when nobody listens or answers by `deadline`; kCancelled
  /// once `stop_fd` is readable.
  static Result<SessionSocket> Connect(const std::string& path, const std::string& client_name,
                                       TimePoint deadline, int stop_fd);

  /// The next message; nullopt when none is there now. Errors: kUnavailable at end of file;
  /// kResourceExhausted when this process has no descriptor left for the one that came along.
  Result<std::optional<SessionMessage>> Receive();
  /// Waits for it. Errors: those of Receive; kDeadlineExceeded; kCancelled once `stop_fd` is readable.
  Result<SessionMessage> ReceiveBy(TimePoint deadline, int stop_fd);
  /// False when the socket takes no more at the moment.
  bool TrySend(const v1::ClientMessage& message);
  /// Makes both ends see the end of the session.
  void Shutdown();
  int fd() const { return fd_.get(); }

 private:
  explicit SessionSocket(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

/// Milliseconds for poll(): rounded up, 0 when passed, at most `limit_ms`.
int PollTimeoutMs(TimePoint deadline, int limit_ms);

}  // namespace kvtier::client
