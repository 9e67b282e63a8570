#include "daemon/service/session_wire.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvtier {
namespace {

constexpr size_t kUsualGroups = 64;
constexpr size_t kMaxGroups = 65536;  ///< the kernel's own bound

static_assert(sizeof(gid_t) == sizeof(uint32_t));

}  // namespace

WireOutcome SendDatagram(int socket, std::string_view bytes, int passed_fd) {
  iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return WireOutcome::kDone;
  // ETOOMANYREFS: the peer has not taken the descriptors sent before; it must read first.
  return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? WireOutcome::kAgain
                                                                      : WireOutcome::kClosed;
}

Received ReceiveDatagram(int socket, std::span<char> buffer) {
  ssize_t received;
  do {
    received = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && errno == EAGAIN) return {.outcome = WireOutcome::kAgain};
  if (received <= 0) return {.outcome = WireOutcome::kClosed};
  const size_t bytes = static_cast<size_t>(received);
  return {.outcome = bytes > buffer.size() ? WireOutcome::kTooLong : WireOutcome::kDone, .bytes = bytes};
}

Peer PeerOf(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
    return {.uid = UINT32_MAX, .gids = {}};
  return {.uid = credentials.uid, .gid = credentials.gid, .pid = credentials.pid, .gids = {}};
}

std::vector<uint32_t> GroupsOf(int socket, const Peer& peer) {
  std::vector<uint32_t> gids(kUsualGroups);
  for (int tries = 0; tries < 2; ++tries) {
    socklen_t bytes = static_cast<socklen_t>(gids.size() * sizeof(gids[0]));
    const bool told = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, gids.data(), &bytes) == 0;
    const bool larger = !told && errno == ERANGE && bytes <= kMaxGroups * sizeof(gids[0]);
    gids.resize(told || larger ? bytes / sizeof(gids[0]) : 0);
    if (told || !larger) break;  // of a socket they do not change: the second try knows how many
  }
  gids.push_back(peer.gid);
  return gids;
}

UniqueFd WatchProcess(int32_t pid) {
  if (pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace kvtier
