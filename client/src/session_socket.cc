#include "client/src/session_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace kvtier::client {
namespace {

constexpr uint32_t kProtocol = 1;
/// The daemon's messages are a few hundred bytes.
constexpr size_t kMaxMessageBytes = 4096;
constexpr size_t kMaxDescriptors = 4;
constexpr int kMaxPollMs = 60'000;

/// Takes the descriptors out of `header`: the first is kept, others are closed.
UniqueFd TakeDescriptor(msghdr& header) {
  UniqueFd kept;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      UniqueFd received(fd);
      if (!kept.valid()) kept = std::move(received);
    }
  }
  return kept;
}

Status Stopped() {
  return Status(Code::kCancelled, "the handle is being closed");
}

Status ConnectBy(int fd, const std::string& path, TimePoint deadline, int stop_fd) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalidArgument, "socket path is longer than 107 bytes: " + path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  for (;;) {
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return Status::Ok();
    // EAGAIN: the daemon's backlog is full. There is no event to wait for, so look again shortly.
    if (errno != EAGAIN && errno != EINTR) {
      return Status(Code::kUnavailable, "no daemon at " + path + ": " + std::strerror(errno));
    }
    if (SteadyClock().Now() >= deadline)
      return Status(Code::kUnavailable, "the daemon at " + path + " does not answer");
    pollfd stop{.fd = stop_fd, .events = POLLIN, .revents = 0};
    ::poll(&stop, 1, 1);
    if (stop.revents != 0) return Stopped();
  }
}

}  // namespace

int PollTimeoutMs(TimePoint deadline, int limit_ms) {
  const TimePoint now = SteadyClock().Now();
  if (deadline <= now) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::min<int64_t>(ms, limit_ms));
}

Result<SessionSocket> SessionSocket::Connect(const std::string& path, const std::string& client_name,
                                             TimePoint deadline, int stop_fd) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return StatusFromErrno(errno, "socket");
  KVTIER_TRY(ConnectBy(fd.get(), path, deadline, stop_fd));
  SessionSocket socket(std::move(fd));
  v1::ClientMessage message;
  message.mutable_hello()->set_min_protocol(kProtocol);
  message.mutable_hello()->set_max_protocol(kProtocol);
  message.mutable_hello()->set_client_name(client_name);
  message.mutable_hello()->set_maps_stores(true);
  if (!socket.TrySend(message))
    return Status(Code::kUnavailable, "the session socket at " + path + " takes no hello");
  return socket;
}

Result<std::optional<SessionMessage>> SessionSocket::Receive() {
  std::array<std::byte, kMaxMessageBytes> bytes;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control;
  iovec vector{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t received = 0;
  do {
    received = ::recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<SessionMessage>();
  if (received <= 0) return Status(Code::kUnavailable, "the daemon ended the session");

  SessionMessage message;
  message.descriptor = TakeDescriptor(header);
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return Status(Code::kResourceExhausted, "no descriptor left for the memory that the daemon hands over");
  }
  if ((header.msg_flags & MSG_TRUNC) != 0 ||
      !message.body.ParseFromArray(bytes.data(), static_cast<int>(received))) {
    return Status(Code::kUnavailable, "the daemon sent a message that does not parse");
  }
  return std::optional<SessionMessage>(std::move(message));
}

Result<SessionMessage> SessionSocket::ReceiveBy(TimePoint deadline, int stop_fd) {
  for (;;) {
    KVTIER_ASSIGN(std::optional<SessionMessage> message, Receive());
    if (message.has_value()) return std::move(*message);
    std::array<pollfd, 2> waits = {
        {{.fd = fd_.get(), .events = POLLIN, .revents = 0}, {.fd = stop_fd, .events = POLLIN, .revents = 0}}};
    const int ready = ::poll(waits.data(), waits.size(), PollTimeoutMs(deadline, kMaxPollMs));
    if (waits[1].revents != 0) return Stopped();
    if (ready == 0 && SteadyClock().Now() >= deadline) {
      return Status(Code::kDeadlineExceeded, "the daemon does not answer on the session socket");
    }
  }
}

bool SessionSocket::TrySend(const v1::ClientMessage& message) {
  const std::string bytes = message.SerializeAsString();
  return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

void SessionSocket::Shutdown() {
  ::shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace kvtier::client
