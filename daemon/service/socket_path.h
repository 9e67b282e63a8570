#pragma once

#include <cstdint>
#include <string>

#include "tiers/base/status.h"
#include "tiers/base/unique_fd.h"

namespace kvtier {

/// The right to serve at a socket path, for as long as it lives: a locked file "<socket>.lock" beside it,
/// which the system unlocks when the process ends however it ends. Move-only.
class SocketLock {
 public:
  /// Errors: kFailedPrecondition when another process holds it; those of StatusFromErrno for the folder.
  static Result<SocketLock> Take(const std::string& socket_path);

 private:
  explicit SocketLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

/// Makes room for a new socket at `path`: a socket file that nobody answers on is removed, anything else
/// stays. Errors: kInvalidArgument (path too long), kFailedPrecondition (somebody answers on it, or it is no
/// socket).
Status PrepareSocketPath(const std::string& path);

/// Of a socket's file: who may connect. The group is the process's, or the folder's where that says so.
inline constexpr uint32_t kOwnerOnly = 0600;

/// A listening, non-blocking SEQPACKET socket at `path`, prepared as above; at no moment is it open to more
/// than `mode` says. Changes the umask for a moment: call it before other threads create files.
Result<UniqueFd> ListenSeqPacket(const std::string& path, int backlog, uint32_t mode = kOwnerOnly);

}  // namespace kvtier
