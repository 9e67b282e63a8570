#include "client/src/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "tiers/base/memfd.h"

namespace kvtier::client {
namespace {

/// Staging in use at a time: four of the largest batches of a put keep the daemon busy, and what it reads is
/// still in the last-level cache.
constexpr uint64_t kStagingWindowBytes = uint64_t{32} << 20;
constexpr size_t kBootIdBytes = 16, kTokenBytes = 16;

/// gRPC aborts the process where it gets no descriptor, so there must be room before the first of its
/// objects: for the session, its memory, gRPC's pollers and sockets, and some for the host meanwhile.
constexpr size_t kDescriptorRoom = 16;

/// Takes copies of `fd` and gives them back. Errors: kResourceExhausted.
Status CheckDescriptorRoom(int fd) {
  std::array<UniqueFd, kDescriptorRoom> taken;
  for (UniqueFd& copy : taken) {
    copy = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      return Status(Code::kResourceExhausted, "a connection needs room for " +
                                                  std::to_string(kDescriptorRoom) +
                                                  " descriptors: " + std::strerror(errno));
    }
  }
  return Status::Ok();
}

Status CheckWelcome(const SessionMessage& message) {
  if (message.body.has_refused()) {
    const v1::Refused& refused = message.body.refused();
    const Code code = refused.code() == 0 ? Code::kUnavailable : static_cast<Code>(refused.code());
    return Status(code, "the daemon refused the session: " + refused.reason());
  }
  const v1::Welcome& welcome = message.body.welcome();
  if (!message.body.has_welcome() || welcome.boot_id().size() != kBootIdBytes ||
      welcome.session_token().size() != kTokenBytes || !message.descriptor.valid() ||
      welcome.limits().staging_bytes() == 0 || welcome.limits().keys_per_call() == 0) {
    return Status(Code::kUnavailable, "the daemon's welcome is not one");
  }
  return Status::Ok();
}

}  // namespace

UnmappedQueue::UnmappedQueue() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void UnmappedQueue::Push(uint32_t arena) {
  {
    std::lock_guard lock(mutex_);
    arenas_.push_back(arena);
  }
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread wakes anyway.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

std::vector<uint32_t> UnmappedQueue::TakeAll() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(event_.get(), &count, sizeof(count));
  std::lock_guard lock(mutex_);
  return std::exchange(arenas_, {});
}

Connection::Connection(const Options& options, SessionSocket socket, v1::Welcome welcome,
                       MappedMemory staging)
    : socket_(std::move(socket)),
      welcome_(std::move(welcome)),
      unmapped_(std::make_shared<UnmappedQueue>()),
      arenas_([queue = unmapped_](uint32_t arena) { queue->Push(arena); }),
      staging_(std::move(staging), kStagingWindowBytes),
      rpc_(options.socket) {}

Result<std::shared_ptr<Connection>> Connection::Make(const Options& options, TimePoint deadline,
                                                     int stop_fd) {
  KVTIER_TRY(CheckDescriptorRoom(stop_fd));
  KVTIER_ASSIGN(SessionSocket socket,
                SessionSocket::Connect(options.socket + ".session", options.client_name, deadline, stop_fd));
  KVTIER_ASSIGN(SessionMessage message, socket.ReceiveBy(deadline, stop_fd));
  KVTIER_TRY(CheckWelcome(message));
  v1::Welcome welcome = std::move(*message.body.mutable_welcome());
  const uint64_t staging_bytes = welcome.limits().staging_bytes();
  KVTIER_TRY(CheckSealed(message.descriptor.get(), F_SEAL_SHRINK, staging_bytes));
  KVTIER_ASSIGN(MappedMemory staging,
                MappedMemory::MapShared(message.descriptor.get(), staging_bytes, MapAccess::kReadWrite));
  ::madvise(staging.data(), staging.size(), MADV_DONTFORK);
  return std::shared_ptr<Connection>(
      new Connection(options, std::move(socket), std::move(welcome), std::move(staging)));
}

void Connection::Serve(int stop_fd) {
  for (;;) {
    const short socket_events = unsent_.empty() ? POLLIN : POLLIN | POLLOUT;
    std::array<pollfd, 3> waits = {{{.fd = socket_.fd(), .events = socket_events, .revents = 0},
                                    {.fd = unmapped_->event_fd(), .events = POLLIN, .revents = 0},
                                    {.fd = stop_fd, .events = POLLIN, .revents = 0}}};
    ::poll(waits.data(), waits.size(), -1);
    if (waits[2].revents != 0) break;
    if (!HandleMessages()) break;
    SendAnswers();
  }
  alive_.store(false, std::memory_order_release);
  socket_.Shutdown();
  arenas_.Close();
  staging_.Close();
}

bool Connection::HandleMessages() {
  for (;;) {
    Result<std::optional<SessionMessage>> received = socket_.Receive();
    if (!received.ok()) return false;
    if (!received->has_value()) return true;
    const SessionMessage& message = **received;
    if (message.body.has_offer()) HandleOffer(message.body.offer(), message.descriptor);
    if (message.body.has_store()) HandleOffer(message.body.store(), message.descriptor);
    if (message.body.has_retire()) arenas_.Retire(message.body.retire().arena());
  }
}

void Connection::HandleOffer(const v1::ArenaOffer& offer, const UniqueFd& descriptor) {
  const Result<std::shared_ptr<const Arena>> arena = arenas_.Add(offer, descriptor.get());
  // Without the mapping, blocks in this arena are misses: nothing else is wrong with the session.
  if (arena.ok()) (*arena)->Prefault();
}

void Connection::HandleOffer(const v1::StoreOffer& offer, const UniqueFd& descriptor) {
  // Unless it says that it is mapped, the daemon brings its blocks into arenas.
  if (!arenas_.AddStore(offer, descriptor.get()).ok()) return;
  unsent_.emplace_back().mutable_mapped()->set_arena(offer.arena());
}

void Connection::SendAnswers() {
  for (const uint32_t arena : unmapped_->TakeAll()) {
    unsent_.emplace_back().mutable_unmapped()->set_arena(arena);
  }
  while (!unsent_.empty()) {
    if (!socket_.TrySend(unsent_.front())) return;
    unsent_.pop_front();
  }
}

void Connection::Abandon() {
  alive_.store(false, std::memory_order_release);
  socket_.Shutdown();
}

Result<uint32_t> Connection::RemoteModel(const Model& model, TimePoint deadline) {
  {
    std::lock_guard lock(models_mutex_);
    const auto it = remote_models_.find(model.number);
    if (it != remote_models_.end()) return it->second;
  }
  v1::RegisterModelRequest request;
  request.set_session_token(token());
  *request.mutable_spec() = model.wire;
  v1::RegisterModelReply reply;
  KVTIER_TRY(rpc_.Call(request, reply, deadline));
  if (reply.name_space() != model.name_space.AsStringView()) {
    return Status(Code::kFailedPrecondition,
                  "the daemon now gives model " + model.spec.model_id + " another namespace");
  }
  RememberModel(model.number, reply.model());
  return reply.model();
}

void Connection::RememberModel(uint32_t number, uint32_t remote) {
  std::lock_guard lock(models_mutex_);
  remote_models_[number] = remote;
}

}  // namespace kvtier::client
