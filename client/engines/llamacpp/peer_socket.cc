#include "client/engines/llamacpp/peer_socket.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>

namespace kvtier::llamacpp {
namespace {

bool IsConnectedTo(int fd, const std::string& address, int port) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return false;
  const void* from = nullptr;
  int from_port = 0;
  if (peer.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&peer);
    from = &v4->sin_addr, from_port = ntohs(v4->sin_port);
  } else if (peer.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&peer);
    from = &v6->sin6_addr, from_port = ntohs(v6->sin6_port);
  }
  char text[INET6_ADDRSTRLEN] = "";
  return from != nullptr && from_port == port &&
         ::inet_ntop(peer.ss_family, from, text, sizeof text) != nullptr && address == text;
}

}  // namespace

PeerSocket::PeerSocket(const httplib::Request& request) {
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    const int fd = std::atoi(it->path().filename().c_str());
    if (!IsConnectedTo(fd, request.remote_addr, request.remote_port)) continue;
    fd_ = fd;
    return;
  }
}

bool PeerSocket::HasLeft() const {
  pollfd connection = {.fd = fd_, .events = POLLRDHUP, .revents = 0};
  return fd_ >= 0 && ::poll(&connection, 1, 0) > 0;
}

}  // namespace kvtier::llamacpp
