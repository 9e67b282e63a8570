// Datagrams of the session socket, with and without descriptors, into the session loop.
//
// An input is a list of steps: a byte that says what, a byte that says of which client (or arena), then what
// that needs. Clients and engine are played here; the sockets are real.
#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "daemon/service/session_loop.h"
#include "proto/session.pb.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/session_steps.h"
#include "tests/fuzz/target.h"
#include "tests/support/manual_clock.h"
#include "tiers/base/memfd.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

constexpr size_t kClients = 4;
constexpr size_t kMaxSteps = 96;
constexpr uint32_t kMaxSessions = 3;
constexpr uint32_t kArenas = 4;
constexpr uint64_t kStagingBytes = 16384;
constexpr size_t kMaxReceived = 4096;

/// One listening socket for all inputs.
class Listener {
 public:
  static const Listener& Get() {
    static const Listener listener;
    return listener;
  }
  ~Listener() { std::filesystem::remove_all(folder_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  UniqueFd Duplicate() const { return UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0)); }
  UniqueFd Connect() const {
    UniqueFd client(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      client.Reset();
    return client;
  }
  /// What nobody took, so that the next input begins anew.
  void DropWaiting() const {
    while (UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)).valid()) continue;
  }

 private:
  Listener() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-fuzz-XXXXXX").string();
    KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    path_ = folder_ + "/s";
    socket_ = ListenSeqPacket(path_, 128).value();
    spdlog::set_level(spdlog::level::off);
  }

  std::string folder_, path_;
  UniqueFd socket_;
};

size_t OpenDescriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  KVTIER_CHECK(folder != nullptr);
  size_t count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

/// Session loop, clients and an engine, one step at a time.
class World {
 public:
  World() {
    arena_ = MakeMemoryFile("arena", ArenaBytes(2, 4096)).value();
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    wake_ = UniqueFd(::fcntl(wake.get(), F_DUPFD_CLOEXEC, 0));
    loop_ = std::make_unique<SessionLoop>(Options(), Deps(), Listener::Get().Duplicate(), std::move(epoll),
                                          std::move(wake));
    KVTIER_CHECK(loop_->Begin());
  }

  void Run(InputReader& input) {
    for (size_t step = 0; step < kMaxSteps && !input.empty(); ++step) {
      const auto what = static_cast<SessionStep>(input.Next() % kSteps);
      Act(what, input.Next(), input);
    }
    Finish();
  }
  bool welcomed() const { return !tokens_.empty(); }

 private:
  struct Client {
    UniqueFd socket;
    uint64_t session = 0;  ///< once welcomed
    bool refused = false;
  };
  struct Session {
    TenantId tenant;
    bool closed = false;
    std::map<uint32_t, uint32_t> unmapped;  ///< acknowledgements, by arena
    uint32_t mapped = 0;
  };

  static SessionServerOptions Options() {
    SessionServerOptions options;
    options.identity.own_uid = ::geteuid();
    options.staging_bytes = kStagingBytes;
    options.staging_total_bytes = (kMaxSessions + 1) * kStagingBytes;
    options.sessions = kMaxSessions;
    options.event_queue = 64;
    return options;
  }
  SessionServer::Deps Deps() {
    return {.commands = commands_,
            .registry = registry_,
            .arena_descriptor = [this](ArenaId arena) -> Result<int> {
              if (!published_.contains(arena.value)) return Status(Code::kNotFound, "no such arena");
              return arena_.get();
            },
            .metrics = metrics_,
            .clock = clock_,
            .events = hub_,
            .stores = {{.tier = kSharedStoreTier,
                        .tenant = "uid:" + std::to_string(::geteuid()),
                        .descriptor = arena_.get(),
                        .bytes = 4096,
                        .segments = 1,
                        .segment_bytes = 4096}}};
  }

  void Act(SessionStep what, uint8_t number, InputReader& input) {
    Client& client = clients_[number % kClients];
    switch (what) {
      case kConnect:
        client = {};
        client.socket = Listener::Get().Connect();
        return;
      case kSend: {
        const uint16_t bytes = input.Next16();
        const uint8_t descriptors = input.Next() % 4;
        return Send(client, input.Take(bytes), descriptors);
      }
      case kClose:
        client = {};
        return;
      case kRead:
        return ReadAll(client);
      case kTurn:
        return Turn();
      case kAnswer:
        return AnswerOne(number);
      case kPublish: {
        const uint32_t arena = 1 + number % kArenas;
        if (!published_.emplace(arena, TenantId{static_cast<uint16_t>(1 + number / kArenas % 2)}).second)
          return;
        return loop_->Post(ArenaPublishedEvent{SpecOf(arena)});
      }
      case kRetire: {
        const uint32_t arena = 1 + number % kArenas;
        if (!published_.contains(arena) || !retired_.insert(arena).second) return;
        return loop_->Post(ArenaRetiredEvent{.arena = ArenaId{arena}, .tenant = published_[arena]});
      }
      case kWithdraw:
        withdrawn_ = true;
        return loop_->Post(StoreWithdrawnEvent{.tier = kSharedStoreTier});
      default:
        return clock_.Advance(std::chrono::milliseconds(number * 100));
    }
  }

  ArenaSpec SpecOf(uint32_t arena) {
    return {.id = ArenaId{arena},
            .tier = TierId{0},
            .tenant = published_.at(arena),
            .slots = 2,
            .slot_bytes = 4096};
  }

  static void Send(const Client& client, std::span<const std::byte> bytes, size_t descriptors) {
    if (!client.socket.valid()) return;
    iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptors > 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
      const std::array<int, 4> fds = {client.socket.get(), client.socket.get(), client.socket.get(), 0};
      std::memcpy(CMSG_DATA(header), fds.data(), descriptors * sizeof(int));
    }
    // It may be refused: the daemon has closed, or does not read.
    [[maybe_unused]] const ssize_t sent =
        ::sendmsg(client.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void ReadAll(Client& client) {
    while (client.socket.valid()) {
      std::array<char, kMaxReceived> bytes;
      iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
      alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
      msghdr header{};
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      const ssize_t received = ::recvmsg(client.socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (received <= 0) return;
      UniqueFd descriptor;
      if (const cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr) {
        KVTIER_CHECK(rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len == CMSG_LEN(sizeof(int)));
        int fd;
        std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
        descriptor = UniqueFd(fd);
      }
      v1::DaemonMessage message;
      KVTIER_CHECK(message.ParseFromArray(bytes.data(), static_cast<int>(received)));
      Check(client, message, descriptor);
    }
  }

  /// What a client may be told: a welcome first, then what is its tenant's.
  void Check(Client& client, const v1::DaemonMessage& message, const UniqueFd& descriptor) {
    KVTIER_CHECK(!client.refused);  // the last message
    KVTIER_CHECK(descriptor.valid() == (message.has_welcome() || message.has_offer() || message.has_store()));
    if (message.has_refused()) {
      client.refused = true;
    } else if (message.has_welcome()) {
      KVTIER_CHECK(client.session == 0);
      client.session = message.welcome().session();
      KVTIER_CHECK(sessions_.contains(client.session));
      constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
      KVTIER_CHECK(CheckSealed(descriptor.get(), kSeals, kStagingBytes).ok());
      KVTIER_CHECK(tokens_.insert(message.welcome().session_token()).second);
    } else if (message.has_offer()) {
      KVTIER_CHECK(published_.at(message.offer().arena()) == sessions_.at(client.session).tenant);
    } else if (message.has_store()) {
      KVTIER_CHECK(client.session != 0 && message.store().arena() == StoreArenaId(kSharedStoreTier).value);
    } else {
      KVTIER_CHECK(client.session != 0 && message.has_retire());
    }
  }

  void Turn() {
    const uint64_t one = 1;  // so that it does not wait
    KVTIER_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
    loop_->Turn();
  }

  void TakeCommands() {
    while (std::optional<Command> command = commands_.TryPop()) {
      std::visit([this](auto& body) { Take(body); }, command->body);
    }
  }
  void Take(OpenSession& open) {
    KVTIER_CHECK(sessions_.emplace(open.session.value, Session{}).second);
    opening_.push_back(std::move(open));
  }
  void Take(CloseSession& close) {
    Session& session = sessions_.at(close.session.value);
    KVTIER_CHECK(!std::exchange(session.closed, true));
    close.reply(Done{});
  }
  void Take(StoreMapped& mapped) {
    Session& session = sessions_.at(mapped.session.value);
    KVTIER_CHECK(!session.closed && mapped.tier == kSharedStoreTier && ++session.mapped == 1);
  }
  void Take(ArenaUnmapped& unmapped) {
    Session& session = sessions_.at(unmapped.session.value);
    const bool store = unmapped.arena == StoreArenaId(kSharedStoreTier);
    KVTIER_CHECK(!session.closed && (store ? withdrawn_ : retired_.contains(unmapped.arena.value)));
    KVTIER_CHECK(++session.unmapped[unmapped.arena.value] <= (store ? 2u : 1u));
  }
  template <typename Body>
  void Take(Body&) {
    KVTIER_CHECK(false);  // nothing else comes from here
  }

  /// As the engine: the arenas of the tenant, then the reply; or an error.
  void AnswerOne(uint8_t number) {
    TakeCommands();
    if (opening_.empty()) return;
    const OpenSession open = std::move(opening_.front());
    opening_.erase(opening_.begin());
    if (number % 8 == 7) return open.reply(Status(Code::kResourceExhausted, "all sessions are taken"));
    const TenantId tenant{static_cast<uint16_t>(1 + number % 2)};
    sessions_.at(open.session.value).tenant = tenant;
    for (const auto& [arena, owner] : published_) {
      if (owner == tenant && !retired_.contains(arena))
        loop_->Post(SessionArenaEvent{.session = open.session, .arena = SpecOf(arena)});
    }
    open.reply(OpenedSession{.tenant = tenant});
  }

  void Finish() {
    for (int i = 0; i < 4; ++i) {
      AnswerOne(0);
      Turn();
      for (Client& client : clients_) ReadAll(client);
    }
    while (!opening_.empty()) AnswerOne(0);
    TakeCommands();
    loop_->Drain();
    TakeCommands();
    for (Client& client : clients_) ReadAll(client);
    for (const auto& [id, session] : sessions_) KVTIER_CHECK(session.closed);
    for (const std::string& token : tokens_) KVTIER_CHECK(registry_.Find(token) == nullptr);
    opening_.clear();
    loop_.reset();
    Listener::Get().DropWaiting();
  }

  BoundedQueue<Command> commands_{64};
  SessionRegistry registry_;
  Metrics metrics_;
  EventHub hub_{metrics_};
  ManualClock clock_;
  UniqueFd arena_, wake_;
  std::unique_ptr<SessionLoop> loop_;
  std::array<Client, kClients> clients_;
  std::map<uint64_t, Session> sessions_;    ///< that the engine was told of
  std::vector<OpenSession> opening_;        ///< and has not answered
  std::map<uint32_t, TenantId> published_;  ///< arenas, with those that are retired
  std::set<uint32_t> retired_;
  std::set<std::string> tokens_;
  bool withdrawn_ = false;
};

}  // namespace

bool RunSession(std::span<const std::byte> bytes) {
  Listener::Get();
  const size_t before = OpenDescriptors();
  bool welcomed = false;
  {
    InputReader input(bytes);
    World world;
    world.Run(input);
    welcomed = world.welcomed();
  }
  KVTIER_CHECK(OpenDescriptors() == before);
  return welcomed;
}

}  // namespace kvtier
