#include "client/ctl/http_get.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "tiers/base/check.h"
#include "tiers/base/unique_fd.h"
#include "tiers/base/units.h"

namespace kvtier::ctl {
namespace {

Result<sockaddr_in> ParseAddress(const std::string& address) {
  constexpr std::string_view kLocalhost = "localhost:";
  const bool local = address.starts_with(kLocalhost);
  KVTIER_ASSIGN(const HostPort place,
                ParseHostPort(local ? "127.0.0.1:" + address.substr(kLocalhost.size()) : address));
  if (place.port == 0) return Status(Code::kInvalidArgument, "nobody listens on port 0");
  sockaddr_in parsed{};
  parsed.sin_family = AF_INET;
  parsed.sin_port = htons(place.port);
  KVTIER_CHECK(::inet_pton(AF_INET, place.host.c_str(), &parsed.sin_addr) == 1);
  return parsed;
}

/// Until the socket can do `events` (or has failed: the call that follows says how).
Status WaitFor(int fd, short events, TimePoint deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock().Now()).count();
  pollfd waiting{.fd = fd, .events = events, .revents = 0};
  if (::poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000))) > 0) return Status::Ok();
  return Status(Code::kDeadlineExceeded, "no answer in time");
}

Result<std::string> Exchange(int fd, const sockaddr_in& address, const std::string& path,
                             TimePoint deadline) {
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      errno != EINPROGRESS) {
    return Status(Code::kUnavailable, "nobody listens there");
  }
  KVTIER_TRY(WaitFor(fd, POLLOUT, deadline));
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  // A request this short fits the empty buffer of a new connection.
  if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return Status(Code::kUnavailable, "nobody listens there");
  }
  std::string reply;
  std::array<char, 16384> piece;
  while (true) {
    KVTIER_TRY(WaitFor(fd, POLLIN, deadline));
    const ssize_t got = ::recv(fd, piece.data(), piece.size(), 0);
    if (got == 0) return reply;
    if (got < 0 && errno != EAGAIN && errno != EINTR) return StatusFromErrno(errno, "read the answer");
    if (got > 0) reply.append(piece.data(), static_cast<size_t>(got));
    if (reply.size() > kMaxHttpBytes) return Status(Code::kResourceExhausted, "the answer does not end");
  }
}

}  // namespace

Result<std::string> HttpGet(const std::string& address, const std::string& path, Duration timeout) {
  KVTIER_ASSIGN(const sockaddr_in parsed, ParseAddress(address));
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return StatusFromErrno(errno, "socket");
  Result<std::string> reply = Exchange(fd.get(), parsed, path, SteadyClock().Now() + timeout);
  const std::string where = "http://" + address + path;
  if (!reply.ok()) return reply.status().WithContext(where);
  const size_t body = reply->find("\r\n\r\n");
  const std::string first_line = reply->substr(0, std::min<size_t>(reply->find('\r'), 100));
  if (body == std::string::npos || first_line.find(" 200") == std::string::npos) {
    return Status(Code::kUnavailable, where + ": answered \"" + first_line + "\"");
  }
  return reply->substr(body + 4);
}

}  // namespace kvtier::ctl
