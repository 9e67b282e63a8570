#include "daemon/service/session_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "daemon/service/session_loop.h"
#include "daemon/service/socket_path.h"

namespace kvtier {
namespace {

constexpr int kBacklog = 128;

class SessionServerImpl final : public SessionServer {
 public:
  SessionServerImpl(SessionServerOptions options, Deps deps, UniqueFd listener, UniqueFd epoll, UniqueFd wake)
      : socket_path_(options.socket_path),
        loop_(std::move(options), std::move(deps), std::move(listener), std::move(epoll), std::move(wake)) {}
  ~SessionServerImpl() override { Stop(); }

  void Start() override {
    thread_ = std::thread([this] { loop_.Run(); });
  }
  void Stop() override {
    if (!thread_.joinable()) return;
    loop_.RequestStop();
    thread_.join();
    ::unlink(socket_path_.c_str());
  }
  void WithdrawStore(TierId tier) override { loop_.Post(StoreWithdrawnEvent{.tier = tier}); }
  TimePoint last_beat() const override { return loop_.last_beat(); }

  void OnArenaPublished(const ArenaSpec& arena) override { loop_.Post(ArenaPublishedEvent{.arena = arena}); }
  void OnSessionArena(SessionId session, const ArenaSpec& arena) override {
    loop_.Post(SessionArenaEvent{.session = session, .arena = arena});
  }
  void OnArenaRetired(ArenaId arena, TenantId tenant) override {
    loop_.Post(ArenaRetiredEvent{.arena = arena, .tenant = tenant});
  }

 private:
  const std::string socket_path_;
  SessionLoop loop_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<SessionServer>> SessionServer::Make(SessionServerOptions options, Deps deps) {
  KVTIER_ASSIGN(UniqueFd listener, ListenSeqPacket(options.socket_path, kBacklog, options.socket_mode));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return StatusFromErrno(errno, "epoll");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return StatusFromErrno(errno, "eventfd");
  return std::unique_ptr<SessionServer>(std::make_unique<SessionServerImpl>(
      std::move(options), std::move(deps), std::move(listener), std::move(epoll), std::move(wake)));
}

}  // namespace kvtier
