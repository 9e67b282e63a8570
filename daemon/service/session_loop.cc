#include "daemon/service/session_loop.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <vector>

namespace kvtier {
namespace {

constexpr int kEpollBatch = 64;
constexpr int kEventsPerTurn = 1024;
constexpr int kTurnMs = 500;                                       ///< the loop goes round at least so often
constexpr int kRetryMs = 2;                                        ///< while the engine is owed something
constexpr Duration kAcceptPause = std::chrono::milliseconds(500);  ///< after one that failed
constexpr Duration kStopPatience = std::chrono::seconds(1);

void Signal(int eventfd) {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the loop is awake already.
  [[maybe_unused]] const ssize_t written = ::write(eventfd, &one, sizeof(one));
}

}  // namespace

SessionLoop::SessionLoop(SessionServerOptions options, SessionServer::Deps deps, UniqueFd listener,
                         UniqueFd epoll, UniqueFd wake)
    : options_(std::move(options)),
      deps_(std::move(deps)),
      identities_(options_.identity),
      staging_budget_(std::make_shared<StagingBudget>(options_.staging_total_bytes)),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      events_(options_.event_queue) {
  last_beat_ns_.store(deps_.clock.Now().time_since_epoch().count(), std::memory_order_relaxed);
}

void SessionLoop::Post(EngineEvent event) {
  if (!events_.TryPush(std::move(event))) events_lost_.store(true, std::memory_order_release);
  Signal(wake_.get());
}

void SessionLoop::RequestStop() {
  stop_.store(true, std::memory_order_release);
  Signal(wake_.get());
}

bool SessionLoop::Watch(int fd, uint32_t events, uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

bool SessionLoop::Begin() {
  if (Watch(wake_.get(), EPOLLIN, kWakeTag) && Watch(listener_.get(), EPOLLIN, kListenerTag)) return true;
  spdlog::error("session socket: epoll: {}", StatusFromErrno(errno, "add").message());
  return false;
}

void SessionLoop::Run() {
  if (!Begin()) return;
  while (!stop_.load(std::memory_order_acquire)) Turn();
  Drain();
}

void SessionLoop::Turn() {
  std::array<epoll_event, kEpollBatch> ready;
  const int timeout_ms = owed_.empty() ? (events_.size() > 0 ? 0 : kTurnMs) : kRetryMs;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), kEpollBatch, timeout_ms);
  const TimePoint now = deps_.clock.Now();
  last_beat_ns_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  PayEngine();
  HandleEvents();
  for (int i = 0; i < count; ++i) Dispatch(ready[i].data.u64, ready[i].events);
  SweepTimeouts(now);
  deps_.metrics.staged_bytes.Set(static_cast<int64_t>(staging_budget_->used_bytes()));
}

void SessionLoop::Drain() {
  listener_.Reset();
  CloseAll("the daemon stops");
  const TimePoint give_up = deps_.clock.Now() + kStopPatience;
  while (!owed_.empty() && !deps_.commands.closed() && deps_.clock.Now() < give_up) {
    PayEngine();
    if (!owed_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
  }
  owed_.clear();
}

void SessionLoop::Dispatch(uint64_t tag, uint32_t events) {
  if (tag == kListenerTag) return Accept();
  if (tag == kWakeTag) {
    uint64_t count;
    [[maybe_unused]] const ssize_t bytes = ::read(wake_.get(), &count, sizeof(count));
    return;
  }
  const Serial serial = tag / 2;
  if (!connections_.contains(serial)) return;  // closed earlier in this turn
  if (tag == ProcessTag(serial)) return Close(serial, "its process has ended");
  if ((events & EPOLLOUT) != 0) FlushOrClose(serial);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) ReadFrom(serial);
}

void SessionLoop::Accept() {
  for (int i = 0; i < kEpollBatch; ++i) {
    if (waiting_for_hello_ >= kMaxWaitingForHello) return PauseAccepting();
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      spdlog::warn("session socket: cannot accept: {}", StatusFromErrno(errno, "accept").message());
      accept_after_ = deps_.clock.Now() + kAcceptPause;
      return PauseAccepting();
    }
    const Serial serial = next_serial_++;
    auto connection = std::make_unique<SessionConnection>();
    connection->peer = PeerOf(socket.get());
    connection->connected_at = deps_.clock.Now();
    connection->socket = std::move(socket);
    if (!Watch(connection->socket.get(), EPOLLIN, SocketTag(serial))) continue;
    connections_.emplace(serial, std::move(connection));
    ++waiting_for_hello_;
  }
}

void SessionLoop::PauseAccepting() {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  accepting_ = false;
}

void SessionLoop::SweepTimeouts(TimePoint now) {
  if (!accepting_ && now >= accept_after_ && waiting_for_hello_ < kMaxWaitingForHello)
    accepting_ = Watch(listener_.get(), EPOLLIN, kListenerTag);
  if (waiting_for_hello_ == 0) return;
  std::vector<Serial> late;
  for (const auto& [serial, connection] : connections_) {
    const bool waits = connection->state == SessionConnection::State::kHello;
    if (waits && now - connection->connected_at > kHelloTimeout) late.push_back(serial);
  }
  for (const Serial serial : late) Refuse(serial, Status(Code::kDeadlineExceeded, "no hello in time"));
}

void SessionLoop::ReadFrom(Serial serial) {
  std::array<char, kMaxClientDatagramBytes> buffer;
  for (int i = 0; i < kMaxDatagramsPerWake; ++i) {
    const auto found = connections_.find(serial);
    if (found == connections_.end()) return;
    const Received received = ReceiveDatagram(found->second->socket.get(), buffer);
    switch (received.outcome) {
      case WireOutcome::kAgain:
        return;
      case WireOutcome::kClosed:
        return Close(serial, "its socket was closed");
      case WireOutcome::kTooLong:
        Refuse(serial, Status(Code::kInvalidArgument,
                              "message longer than " + std::to_string(kMaxClientDatagramBytes) + " bytes"));
        return;
      case WireOutcome::kDone:
        if (!HandleDatagram(serial, *found->second, {buffer.data(), received.bytes})) return;
    }
  }
}

void SessionLoop::HandleEvents() {
  if (events_lost_.exchange(false, std::memory_order_acquire)) CloseAll("arena events were lost");
  for (int i = 0; i < kEventsPerTurn; ++i) {
    std::optional<EngineEvent> event = events_.TryPop();
    if (!event) return;
    std::visit([this](auto& one) { Handle(one); }, *event);
  }
}

void SessionLoop::Close(Serial serial, std::string_view why) {
  const auto found = connections_.find(serial);
  if (found == connections_.end()) return;
  const std::unique_ptr<SessionConnection> connection = std::move(found->second);
  connections_.erase(found);
  if (connection->state == SessionConnection::State::kHello) {
    --waiting_for_hello_;
    return;
  }
  const SessionId id = connection->session->id;
  deps_.registry.Remove(connection->token);
  by_session_.erase(id);
  Owe(CloseSession{.session = id, .reply = [](Result<Done>) {}});
  deps_.events.EndSession(id);
  spdlog::info("session {} of {} ended: {}", id.value, connection->session->tenant_name, why);
  // One that was not open was not told of.
  if (connection->state == SessionConnection::State::kOpen)
    TellChange(*connection->session, v1::SessionChange::ENDED, why);
}

void SessionLoop::TellChange(const ClientSession& session, v1::SessionChange::Kind kind,
                             std::string_view reason) {
  v1::Event event;
  v1::SessionChange& change = *event.mutable_session();
  change.set_kind(kind);
  change.set_session(session.id.value);
  change.set_tenant(session.tenant_name);
  change.set_uid(session.uid);
  change.set_pid(session.pid);
  change.set_reason(std::string(reason));
  deps_.events.TellTenant(session.tenant_name, std::move(event));
}

void SessionLoop::CloseAll(std::string_view why) {
  while (!connections_.empty()) Close(connections_.begin()->first, why);
}

void SessionLoop::Owe(CommandBody body) {
  owed_.push_back(Command{.deadline = kNoTime, .body = std::move(body)});
  PayEngine();
}

void SessionLoop::PayEngine() {
  while (!owed_.empty() && deps_.commands.TryPush(std::move(owed_.front()))) owed_.pop_front();
}

}  // namespace kvtier
