#include "daemon/service/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace kvtier {
namespace {

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalidArgument, "socket path " + path + " has " + std::to_string(path.size()) +
                                              " bytes; UNIX sockets allow 1 to 107");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

/// Whether a process listens at `address` with a socket of `type`. The kernel answers at once: it checks for
/// a listener before it compares types.
bool SomebodyAnswers(const sockaddr_un& address, int type) {
  const UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return true;  // cannot tell: leave the file alone
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return true;
  return errno != ECONNREFUSED && errno != ENOENT && errno != EPROTOTYPE;
}

}  // namespace

Result<SocketLock> SocketLock::Take(const std::string& socket_path) {
  const std::string path = socket_path + ".lock";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return StatusFromErrno(errno, "lock file " + path);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return StatusFromErrno(errno, "lock file " + path);
    return Status(Code::kFailedPrecondition, "another kvtierd serves " + socket_path);
  }
  return SocketLock(std::move(file));
}

Status PrepareSocketPath(const std::string& path) {
  KVTIER_ASSIGN(const sockaddr_un address, AddressOf(path));
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status::Ok() : StatusFromErrno(errno, "socket " + path);
  }
  if (!S_ISSOCK(info.st_mode)) return Status(Code::kFailedPrecondition, path + " exists and is not a socket");
  if (SomebodyAnswers(address, SOCK_STREAM) || SomebodyAnswers(address, SOCK_SEQPACKET)) {
    return Status(Code::kFailedPrecondition, "another process answers on " + path);
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return StatusFromErrno(errno, "stale socket " + path);
  return Status::Ok();
}

Result<UniqueFd> ListenSeqPacket(const std::string& path, int backlog, uint32_t mode) {
  KVTIER_TRY(PrepareSocketPath(path));
  KVTIER_ASSIGN(const sockaddr_un address, AddressOf(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return StatusFromErrno(errno, "socket");
  // The mode of the new file is that of the descriptor: no moment in which others could connect.
  if (::fchmod(socket.get(), mode) != 0) return StatusFromErrno(errno, "socket mode");
  const mode_t before = ::umask(0777 & ~mode);
  const int bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::umask(before);
  if (bound != 0) return StatusFromErrno(error, "socket " + path);
  if (::listen(socket.get(), backlog) != 0) return StatusFromErrno(errno, "socket " + path);
  return socket;
}

}  // namespace kvtier
