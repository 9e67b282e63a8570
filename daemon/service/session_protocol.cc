#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include <cerrno>

#include "daemon/service/session_loop.h"
#include "proto/session.pb.h"
#include "tiers/cxl_format.h"

/// The half of SessionLoop that speaks proto/session.proto.
namespace kvtier {
namespace {

using Attach = SessionConnection::Outgoing::Attach;

Result<SessionToken> RandomToken() {
  SessionToken token;
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return StatusFromErrno(errno, "getrandom");
  }
  return token;
}

template <size_t N>
std::string AsString(const std::array<std::byte, N>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// What a client calls itself, safe for a log line.
std::string Printable(std::string_view name) {
  std::string safe(name);
  for (char& c : safe) {
    if (c < ' ' || c > '~') c = '?';
  }
  return safe;
}

}  // namespace

bool SessionLoop::HandleDatagram(Serial serial, SessionConnection& connection, std::string_view bytes) {
  v1::ClientMessage message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Refuse(serial, Status(Code::kInvalidArgument, "malformed message"));
  }
  const bool first = connection.state == SessionConnection::State::kHello;
  if (first != (message.body_case() == v1::ClientMessage::kHello)) {
    return Refuse(serial, Status(Code::kInvalidArgument, first ? "the first message must be a hello"
                                                               : "not a message of an open session"));
  }
  if (first) return HandleHello(serial, connection, message.hello());
  Status taken(Code::kInvalidArgument, "empty message");
  if (message.has_unmapped()) taken = HandleUnmapped(connection, ArenaId{message.unmapped().arena()});
  if (message.has_mapped()) taken = HandleMapped(connection, ArenaId{message.mapped().arena()});
  return taken.ok() || Refuse(serial, taken);
}

bool SessionLoop::HandleHello(Serial serial, SessionConnection& connection, const v1::Hello& hello) {
  if (hello.min_protocol() > kSessionProtocol || hello.max_protocol() < kSessionProtocol) {
    return Refuse(serial, Status(Code::kUnimplemented,
                                 "this daemon speaks session protocol " + std::to_string(kSessionProtocol) +
                                     ", the client " + std::to_string(hello.min_protocol()) + " to " +
                                     std::to_string(hello.max_protocol())));
  }
  const Status admitted = Admit(serial, connection, hello);
  return admitted.ok() || Refuse(serial, admitted);
}

Status SessionLoop::Admit(Serial serial, SessionConnection& connection, const v1::Hello& hello) {
  if (hello.client_name().size() > kMaxClientNameBytes) {
    return Status(Code::kInvalidArgument, "client name longer than 64 bytes");
  }
  if (identities_.needs_groups()) connection.peer.gids = GroupsOf(connection.socket.get(), connection.peer);
  KVTIER_ASSIGN(IdentityMap::Identity identity, identities_.Identify(connection.peer));
  if (by_session_.size() >= options_.sessions) {
    return Status(Code::kResourceExhausted,
                  "all " + std::to_string(options_.sessions) + " sessions are taken");
  }
  KVTIER_ASSIGN(connection.token, RandomToken());
  KVTIER_ASSIGN(Staging::WithDescriptor staging, Staging::Make(staging_budget_, options_.staging_bytes));
  auto session = std::make_shared<ClientSession>();
  session->id = SessionId{next_session_++};
  session->tenant_name = std::move(identity.tenant);
  session->uid = connection.peer.uid;
  session->pid = connection.peer.pid;
  session->admin = identity.admin;
  session->staging = std::move(staging.staging);

  Command open{.deadline = deps_.clock.Now() + kOpenTimeout,
               .body = OpenSession{.session = session->id,
                                   .tenant_name = session->tenant_name,
                                   .reply = [this, id = session->id](Result<OpenedSession> opened) {
                                     Post(SessionOpenedEvent{.session = id, .opened = std::move(opened)});
                                   }}};
  // Behind what is owed, or the engine would see the sessions of one client in another order.
  if (!owed_.empty() || !deps_.commands.TryPush(std::move(open))) {
    deps_.metrics.commands_rejected_full.Add();
    return Status(Code::kResourceExhausted, "the command queue is full");
  }
  connection.process = WatchProcess(connection.peer.pid);
  if (connection.process.valid()) Watch(connection.process.get(), EPOLLIN, ProcessTag(serial));
  connection.staging = std::move(staging.descriptor);
  connection.session = std::move(session);
  connection.maps_stores = hello.maps_stores();
  connection.state = SessionConnection::State::kOpening;
  --waiting_for_hello_;
  by_session_.emplace(connection.session->id, serial);
  spdlog::debug("session {} of {} is being opened for \"{}\"", connection.session->id.value,
                connection.session->tenant_name, Printable(hello.client_name()));
  return Status::Ok();
}

Status SessionLoop::HandleMapped(SessionConnection& connection, ArenaId store) {
  const auto found = connection.arenas.find(store);
  for (const SharedStore& one : deps_.stores) {
    if (found == connection.arenas.end() || StoreArenaId(one.tier) != store) continue;
    if (found->second == SessionConnection::ArenaState::kRetired) return Status::Ok();  // withdrawn meanwhile
    if (found->second == SessionConnection::ArenaState::kMapped) break;
    found->second = SessionConnection::ArenaState::kMapped;
    Owe(StoreMapped{.session = connection.session->id, .tier = one.tier});
    spdlog::info("session {} of {} maps tier {}", connection.session->id.value,
                 connection.session->tenant_name, one.tier.value);
    return Status::Ok();
  }
  return Status(Code::kInvalidArgument, "mapped a store that was not offered, or twice");
}

Status SessionLoop::HandleUnmapped(SessionConnection& connection, ArenaId arena) {
  // Only what this client was told to unmap: an early acknowledgement could free memory that is still being
  // offered.
  const auto found = connection.arenas.find(arena);
  if (found == connection.arenas.end() || found->second != SessionConnection::ArenaState::kRetired) {
    return Status(Code::kInvalidArgument, "acknowledged an arena that was not retired");
  }
  connection.arenas.erase(found);
  Owe(ArenaUnmapped{.session = connection.session->id, .arena = arena});
  return Status::Ok();
}

bool SessionLoop::Refuse(Serial serial, const Status& why) {
  const auto found = connections_.find(serial);
  if (found == connections_.end()) return false;
  SessionConnection& connection = *found->second;
  // The engine counts the sessions that it opens and those that it refuses.
  if (connection.state == SessionConnection::State::kHello) deps_.metrics.sessions_refused.Add();
  spdlog::warn("session socket: uid {} refused: {}", connection.peer.uid, why.ToString());
  v1::DaemonMessage message;
  message.mutable_refused()->set_code(static_cast<int32_t>(why.code()));
  message.mutable_refused()->set_reason(why.message());
  Queue(connection, message, Attach::kNothing, ArenaId{});
  const bool told = Flush(serial, connection);
  Close(serial, told ? "it was refused" : "it was refused and does not read");
  return false;
}

void SessionLoop::Handle(SessionOpenedEvent& event) {
  const auto found = by_session_.find(event.session);
  if (found == by_session_.end()) return;  // gone meanwhile; the engine has its CloseSession
  const Serial serial = found->second;
  SessionConnection& connection = *connections_.at(serial);
  if (!event.opened.ok()) {
    Refuse(serial, event.opened.status());
    return;
  }
  connection.tenant = event.opened->tenant;
  Welcome(serial, connection);
}

void SessionLoop::Welcome(Serial serial, SessionConnection& connection) {
  const std::shared_ptr<ClientSession>& session = connection.session;
  v1::DaemonMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_protocol(kSessionProtocol);
  welcome.set_boot_id(AsString(options_.boot_id));
  welcome.set_session(session->id.value);
  welcome.set_session_token(AsString(connection.token));
  welcome.set_admin(session->admin);
  v1::Limits& limits = *welcome.mutable_limits();
  limits.set_keys_per_call(options_.limits.keys_per_call);
  limits.set_staging_bytes(options_.staging_bytes);
  limits.set_block_bytes(options_.limits.block_bytes);
  limits.set_leases(options_.limits.leases);
  limits.set_models(options_.limits.models);
  limits.set_lease_ttl_ms(options_.limits.lease_ttl_ms);
  limits.set_max_lease_ttl_ms(options_.limits.max_lease_ttl_ms);

  connection.state = SessionConnection::State::kOpen;
  deps_.registry.Add(connection.token, session);
  spdlog::info("session {} of {} opened by uid {}, process {}", session->id.value, session->tenant_name,
               session->uid, session->pid);
  TellChange(*session, v1::SessionChange::OPENED, {});
  // The offers that came while the session was being opened follow the welcome.
  std::deque<SessionConnection::Outgoing> offers;
  offers.swap(connection.outbox);
  Queue(connection, message, Attach::kStaging, ArenaId{});
  for (SessionConnection::Outgoing& offer : offers) connection.outbox.push_back(std::move(offer));
  for (const SharedStore& store : deps_.stores) {
    const bool for_it = connection.maps_stores && store.tenant == session->tenant_name;
    if (for_it && !withdrawn_.contains(StoreArenaId(store.tier))) Offer(connection, store);
  }
  FlushOrClose(serial);
}

void SessionLoop::Handle(const ArenaPublishedEvent& event) {
  std::vector<Serial> touched;
  for (const auto& [serial, connection] : connections_) {
    if (connection->state != SessionConnection::State::kOpen || connection->tenant != event.arena.tenant)
      continue;
    Offer(*connection, event.arena);
    touched.push_back(serial);
  }
  for (const Serial serial : touched) FlushOrClose(serial);
}

void SessionLoop::Handle(const SessionArenaEvent& event) {
  const auto found = by_session_.find(event.session);
  if (found == by_session_.end()) return;
  Offer(*connections_.at(found->second), event.arena);  // sent after the welcome
}

void SessionLoop::Handle(const ArenaRetiredEvent& event) {
  std::vector<Serial> touched;
  for (const auto& [serial, connection] : connections_) {
    if (!connection->arenas.contains(event.arena)) continue;
    Retire(*connection, event.arena);
    touched.push_back(serial);
  }
  for (const Serial serial : touched) FlushOrClose(serial);
}

void SessionLoop::Offer(SessionConnection& connection, const ArenaSpec& arena) {
  v1::DaemonMessage message;
  v1::ArenaOffer& offer = *message.mutable_offer();
  offer.set_arena(arena.id.value);
  offer.set_bytes(ArenaBytes(arena.slots, arena.slot_bytes));
  offer.set_slots(arena.slots);
  offer.set_slot_bytes(arena.slot_bytes);
  connection.arenas.emplace(arena.id, SessionConnection::ArenaState::kOffered);
  Queue(connection, message, Attach::kArena, arena.id);
}

void SessionLoop::Offer(SessionConnection& connection, const SharedStore& store) {
  const ArenaId id = StoreArenaId(store.tier);
  v1::DaemonMessage message;
  v1::StoreOffer& offer = *message.mutable_store();
  offer.set_arena(id.value);
  offer.set_bytes(store.bytes);
  offer.set_segments(store.segments);
  offer.set_segment_bytes(store.segment_bytes);
  offer.set_first_segment(kCxlMetaBytes);
  offer.set_store_uuid(AsString(store.uuid));
  connection.arenas.emplace(id, SessionConnection::ArenaState::kOffered);
  Queue(connection, message, Attach::kStore, id);
}

void SessionLoop::Handle(const StoreWithdrawnEvent& event) {
  const ArenaId store = StoreArenaId(event.tier);
  if (!withdrawn_.insert(store).second) return;
  // The engine stops at once to lease what stands there; then clients let go, each in its time.
  for (const auto& [serial, connection] : connections_) {
    if (!connection->arenas.contains(store)) continue;
    Owe(ArenaUnmapped{.session = connection->session->id, .arena = store});
  }
  Handle(ArenaRetiredEvent{.arena = store, .tenant = {}});
}

void SessionLoop::Retire(SessionConnection& connection, ArenaId arena) {
  v1::DaemonMessage message;
  message.mutable_retire()->set_arena(arena.value);
  connection.arenas[arena] = SessionConnection::ArenaState::kRetired;
  Queue(connection, message, Attach::kNothing, arena);
}

void SessionLoop::Queue(SessionConnection& connection, const v1::DaemonMessage& message, Attach attach,
                        ArenaId arena) {
  connection.outbox.push_back({.attach = attach, .arena = arena, .bytes = message.SerializeAsString()});
}

bool SessionLoop::Flush(Serial serial, SessionConnection& connection) {
  while (!connection.outbox.empty()) {
    const SessionConnection::Outgoing& next = connection.outbox.front();
    int attached = -1;
    if (next.attach == Attach::kStaging) attached = connection.staging.get();
    if (next.attach == Attach::kArena) {
      const Result<int> arena = deps_.arena_descriptor(next.arena);
      if (!arena.ok()) return false;  // a client without it could not read; it comes back and is told anew
      attached = *arena;
    }
    for (const SharedStore& store : deps_.stores) {
      if (next.attach == Attach::kStore && StoreArenaId(store.tier) == next.arena)
        attached = store.descriptor;
    }
    const WireOutcome sent = SendDatagram(connection.socket.get(), next.bytes, attached);
    if (sent == WireOutcome::kAgain) break;
    if (sent != WireOutcome::kDone) return false;
    if (next.attach == Attach::kStaging) connection.staging.Reset();
    connection.outbox.pop_front();
  }
  if (connection.outbox.size() > kMaxOutbox) return false;
  if (connection.waits_for_room == !connection.outbox.empty()) return true;
  connection.waits_for_room = !connection.outbox.empty();
  epoll_event event{.events = EPOLLIN | (connection.waits_for_room ? EPOLLOUT : 0u),
                    .data = {.u64 = SocketTag(serial)}};
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event) == 0;
}

void SessionLoop::FlushOrClose(Serial serial) {
  const auto found = connections_.find(serial);
  if (found == connections_.end() || found->second->state != SessionConnection::State::kOpen) return;
  if (!Flush(serial, *found->second)) Close(serial, "it does not read what it is sent");
}

}  // namespace kvtier
