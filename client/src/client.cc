#include "client/src/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "client/src/layer_fetch.h"
#include "client/src/model.h"
#include "client/src/progress.h"

namespace kvtier::client {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(5);
constexpr Duration kMaxBackoff = std::chrono::milliseconds(500);
/// For a hello or a registration, at least: a daemon that takes longer than this and than the handle's own
/// deadline is as good as away.
constexpr Duration kHandshakeTimeout = std::chrono::seconds(1);
constexpr size_t kMaxTickets = 4096;

TimePoint Now() {
  return SteadyClock().Now();
}

}  // namespace

Client::Client(Options options)
    : options_(std::move(options)),
      stop_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      completions_(std::make_shared<Completions>(kMaxTickets)),
      fetches_(options_.fetch_threads) {}

Client::~Client() {
  Close();
}

Result<std::shared_ptr<Client>> Client::Open(Options options) {
  std::shared_ptr<Client> client(new Client(std::move(options)));
  if (!client->stop_event_.valid()) return Status(Code::kResourceExhausted, "no descriptor left");
  try {
    client->thread_ = std::thread([raw = client.get()] { raw->Run(); });
  } catch (const std::system_error&) {
    return Status(Code::kResourceExhausted, "no thread left");
  }
  const Result<std::shared_ptr<Connection>> first = client->Current(client->Deadline(0));
  if (first.ok()) return client;
  client->Close();
  if (first.status().code() != Code::kDeadlineExceeded) return first.status();
  return Status(Code::kUnavailable, "no answer from a daemon at " + client->options_.connection.socket);
}

void Client::Close() {
  Publish(State::kClosed, nullptr, Status(Code::kStale, "the handle is closed"));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_event_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  fetches_.Stop();
}

TimePoint Client::Deadline(uint32_t timeout_ms) const {
  return Now() + (timeout_ms == 0 ? options_.timeout : Duration(std::chrono::milliseconds(timeout_ms)));
}

Result<std::shared_ptr<Connection>> Client::Current(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  const auto settled = [this] {
    return state_ == State::kDown || state_ == State::kClosed ||
           (state_ == State::kUp && connection_->alive());
  };
  if (!changed_.wait_until(lock, deadline, settled)) {
    return Status(Code::kDeadlineExceeded, "the connection to the daemon is being made");
  }
  if (state_ != State::kUp) return why_down_;
  return connection_;
}

bool Client::SessionLost(const Connection& connection, const Status& status) {
  return status.code() == Code::kUnauthenticated ||
         (status.code() == Code::kUnavailable && !connection.alive());
}

Result<std::shared_ptr<const Model>> Client::RegisterModel(v1::ModelSpec spec, TimePoint deadline) {
  v1::RegisterModelReply reply;
  std::shared_ptr<Connection> used;
  KVTIER_TRY(OnConnection(deadline, [&](const std::shared_ptr<Connection>& connection) {
    v1::RegisterModelRequest request;
    request.set_session_token(connection->token());
    *request.mutable_spec() = spec;
    used = connection;
    return connection->rpc().Call(request, reply, deadline);
  }));
  KVTIER_ASSIGN(const ModelSpec resolved, SpecFromWire(reply.spec()));
  KVTIER_ASSIGN(const NamespaceDigest name_space, DigestFromWire<NamespaceDigest>(reply.name_space()));

  std::lock_guard lock(mutex_);
  auto known = std::find_if(models_.begin(), models_.end(),
                            [&](const auto& model) { return model->name_space == name_space; });
  if (known == models_.end()) {
    const auto number = static_cast<uint32_t>(models_.size());
    known = models_.insert(
        known, std::make_shared<const Model>(Model{
                   .number = number, .wire = reply.spec(), .spec = resolved, .name_space = name_space}));
  }
  const std::shared_ptr<const Model> model = *known;
  used->RememberModel(model->number, reply.model());
  return model;
}

uint64_t Client::AddTicket(Ticket ticket) {
  const std::shared_ptr<Progress> progress = ticket.progress;
  const std::shared_ptr<LayerFetch> fetch = ticket.fetch;
  std::shared_ptr<LayerFetch> forgotten;
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    if (ticket_order_.size() >= kMaxTickets) {
      const auto oldest = tickets_.extract(ticket_order_.front());
      ticket_order_.pop_front();
      forgotten = oldest.mapped().fetch;
    }
    id = next_ticket_++;
    tickets_.emplace(id, std::move(ticket));
    ticket_order_.push_back(id);
  }
  // Nobody can wait for it any more before taking its destination away.
  if (forgotten != nullptr) forgotten->Cancel();
  const auto ended = [completions = completions_, id] { completions->Add(id); };
  if (progress != nullptr) progress->OnEnd(ended);
  if (fetch != nullptr) fetch->OnEnd(ended);
  return id;
}

Result<Ticket> Client::FindTicket(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto it = tickets_.find(id);
  if (it == tickets_.end()) return Status(Code::kStale, "no such ticket");
  return it->second;
}

void Client::DropTicket(uint64_t id) {
  completions_->Forget(id);
  std::lock_guard lock(mutex_);
  if (tickets_.erase(id) > 0) std::erase(ticket_order_, id);
}

void Client::DropTicketsOf(const Connection& connection) {
  std::lock_guard lock(mutex_);
  std::erase_if(tickets_, [&](const auto& item) { return item.second.connection.get() == &connection; });
  std::erase_if(ticket_order_, [&](uint64_t id) { return !tickets_.contains(id); });
}

void Client::CloseDescriptorInChild() const {
  if (const int fd = session_fd_.load(); fd >= 0) ::close(fd);
}

void Client::Run() {
  Duration backoff = kFirstBackoff;
  for (;;) {
    Result<std::shared_ptr<Connection>> connected = ConnectOnce();
    if (!connected.ok()) {
      Publish(State::kDown, nullptr, connected.status());
      if (!Pause(backoff)) return;
      backoff = std::min(backoff * 2, kMaxBackoff);
      continue;
    }
    backoff = kFirstBackoff;
    session_fd_ = (*connected)->session_fd();
    Publish(State::kUp, *connected, Status::Ok());
    (*connected)->Serve(stop_event_.get());
    session_fd_ = -1;
    DropTicketsOf(**connected);
    Publish(State::kConnecting, nullptr, Status(Code::kUnavailable, "the session with the daemon has ended"));
    // A daemon that accepts and hangs up at once must not make this thread spin.
    if (!Pause(std::chrono::milliseconds(1))) return;
  }
}

Result<std::shared_ptr<Connection>> Client::ConnectOnce() {
  const Duration patience = std::max(kHandshakeTimeout, options_.timeout);
  KVTIER_ASSIGN(std::shared_ptr<Connection> connection,
                Connection::Make(options_.connection, Now() + patience, stop_event_.get()));
  std::vector<std::shared_ptr<const Model>> models;
  {
    std::lock_guard lock(mutex_);
    models = models_;
  }
  for (const auto& model : models) {
    const Result<uint32_t> remote = connection->RemoteModel(*model, Now() + patience);
    // A model that is refused fails by itself, call by call; a daemon that does not answer is not up yet.
    const Code code = remote.status().code();
    if (code == Code::kUnavailable || code == Code::kDeadlineExceeded || code == Code::kUnauthenticated) {
      return Status(Code::kUnavailable, "models could not be registered again: " + remote.status().message());
    }
  }
  return connection;
}

void Client::Publish(State state, std::shared_ptr<Connection> connection, Status why) {
  std::shared_ptr<Connection> previous;  // released after the lock
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kClosed) return;
    state_ = state;
    previous = std::exchange(connection_, std::move(connection));
    why_down_ = std::move(why);
  }
  changed_.notify_all();
}

bool Client::Pause(Duration duration) const {
  pollfd stop{.fd = stop_event_.get(), .events = POLLIN, .revents = 0};
  ::poll(&stop, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count()));
  return stop.revents == 0;
}

}  // namespace kvtier::client
