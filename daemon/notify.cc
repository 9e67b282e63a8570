#include "daemon/notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace kvtier {

ServiceManager::ServiceManager(const std::string& address) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (address.size() < 2 || address.size() >= sizeof(to.sun_path)) return;
  std::copy(address.begin(), address.end(), to.sun_path);
  if (address.front() == '@') to.sun_path[0] = '\0';  // an abstract name
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), size) == 0) socket_ = std::move(socket);
}

ServiceManager ServiceManager::FromEnvironment() {
  const char* address = std::getenv("NOTIFY_SOCKET");
  return ServiceManager(address == nullptr ? "" : address);
}

void ServiceManager::Say(std::string_view state) {
  if (!socket_.valid()) return;
  [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), state.data(), state.size(), MSG_NOSIGNAL);
}

}  // namespace kvtier
