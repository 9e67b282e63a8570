#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tiers/base/unique_fd.h"

namespace kvtier {

/// Datagrams of the session socket (proto/session.proto). Non-blocking; never raises SIGPIPE.

inline constexpr uint32_t kSessionProtocol = 1;  ///< the one version there is
inline constexpr size_t kMaxClientDatagramBytes = 1024;

enum class WireOutcome : uint8_t {
  kDone,
  kAgain,    ///< nothing now; wait until the socket is ready
  kTooLong,  ///< the peer sent more than the buffer holds
  kClosed,   ///< end of file or a dead socket
};

/// Sends one datagram, with a copy of descriptor `passed_fd` unless that is -1.
WireOutcome SendDatagram(int socket, std::string_view bytes, int passed_fd);

struct Received {
  WireOutcome outcome = WireOutcome::kClosed;
  size_t bytes = 0;
};
/// Receives one datagram into `buffer`. Descriptors that the peer attached are dropped by the kernel.
Received ReceiveDatagram(int socket, std::span<char> buffer);

struct Peer {
  uint32_t uid = 0;
  uint32_t gid = 0;
  int32_t pid = 0;             ///< 0 where it is not visible from here
  std::vector<uint32_t> gids;  ///< all its groups, once they were asked for
};
/// Who connected, as the kernel recorded it at connect(), but for the groups. Uid is UINT32_MAX when the
/// kernel does not say.
Peer PeerOf(int socket);
/// `peer.gid` and its supplementary groups, recorded likewise. Only the first where the kernel does not say.
std::vector<uint32_t> GroupsOf(int socket, const Peer& peer);

/// A descriptor that becomes readable when process `pid` ends; invalid where that is not possible.
UniqueFd WatchProcess(int32_t pid);

}  // namespace kvtier
