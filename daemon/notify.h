#pragma once

#include <string>
#include <string_view>

#include "tiers/base/unique_fd.h"

namespace kvtier {

/// Tells a service manager how the daemon is, by systemd's protocol (sd_notify(3)): datagrams to the socket
/// that $NOTIFY_SOCKET names. Without one, or when nobody listens, nothing happens. Threads: single-owner.
/// Owns: a socket. Errors: none; a manager that hears nothing acts by itself.
class ServiceManager {
 public:
  /// `address`: a path, or "@" and an abstract name; empty for none.
  explicit ServiceManager(const std::string& address);
  /// Of $NOTIFY_SOCKET.
  static ServiceManager FromEnvironment();

  /// Everything is served.
  void Ready() { Say("READY=1"); }
  /// Still going; to be said more often than the manager's WatchdogSec.
  void Alive() { Say("WATCHDOG=1"); }
  void Stopping() { Say("STOPPING=1"); }

 private:
  /// Never waits: a full socket loses the message.
  void Say(std::string_view state);

  UniqueFd socket_;  ///< connected; invalid when there is nobody to tell
};

}  // namespace kvtier
