#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <optional>
#include <string>

#include "proto/session.pb.h"
#include "tiers/base/unique_fd.h"

namespace kvtier {

/// A client of the session socket that can misbehave. Every wait ends after ten seconds.
class RawClient {
 public:
  static RawClient Connect(const std::string& path) {
    RawClient client;
    client.socket_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (::connect(client.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      client.socket_.Reset();
    }
    return client;
  }
  bool connected() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  bool SendBytes(std::string_view bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool Send(const v1::ClientMessage& message) { return SendBytes(message.SerializeAsString()); }
  bool Hello(uint32_t min_protocol = 1, uint32_t max_protocol = 1, const std::string& name = "raw") {
    v1::ClientMessage message;
    message.mutable_hello()->set_min_protocol(min_protocol);
    message.mutable_hello()->set_max_protocol(max_protocol);
    message.mutable_hello()->set_client_name(name);
    return Send(message);
  }
  /// Of a library that maps stores.
  bool HelloOfMapper() {
    v1::ClientMessage message;
    message.mutable_hello()->set_min_protocol(1);
    message.mutable_hello()->set_max_protocol(1);
    message.mutable_hello()->set_maps_stores(true);
    return Send(message);
  }
  bool Mapped(uint32_t store) {
    v1::ClientMessage message;
    message.mutable_mapped()->set_arena(store);
    return Send(message);
  }
  bool Unmapped(uint32_t arena) {
    v1::ClientMessage message;
    message.mutable_unmapped()->set_arena(arena);
    return Send(message);
  }

  static constexpr int kPatienceMs = 10'000;
  struct Incoming {
    v1::DaemonMessage message;
    UniqueFd descriptor;
  };
  /// Nothing at end of file or when none has come in time.
  std::optional<Incoming> Receive(int timeout_ms = kPatienceMs) {
    if (!Readable(timeout_ms)) return std::nullopt;
    char bytes[4096];
    iovec part{.iov_base = bytes, .iov_len = sizeof(bytes)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t received = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (received <= 0) return std::nullopt;
    Incoming incoming;
    if (const cmsghdr* rights = CMSG_FIRSTHDR(&header);
        rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
      incoming.descriptor = UniqueFd(fd);
    }
    if (!incoming.message.ParseFromArray(bytes, static_cast<int>(received))) return std::nullopt;
    return incoming;
  }
  /// The daemon has closed the connection (messages before that are thrown away).
  bool SeesEndOfFile() {
    char bytes[4096];
    while (Readable()) {
      if (::recv(socket_.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }

 private:
  bool Readable(int timeout_ms = kPatienceMs) {
    pollfd wait{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&wait, 1, timeout_ms) == 1;
  }

  UniqueFd socket_;
};

}  // namespace kvtier
