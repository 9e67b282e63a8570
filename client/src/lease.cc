#include "client/src/lease.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "client/src/query.h"

namespace kvtier::client {
namespace {

/// For a renewal, which a fetch waits for.
constexpr Duration kRenewTimeout = std::chrono::seconds(1);
/// For a release that nobody waits for: a daemon that hangs for less frees the lease as soon as it answers
/// again.
constexpr Duration kBackgroundReleaseTimeout = std::chrono::minutes(1);
/// Part of a deadline that is left for the way back of a reply that the daemon sends at the last moment.
constexpr int kReplyShare = 10;

TimePoint Now() {
  return SteadyClock().Now();
}

uint32_t DaemonDeadlineMs(TimePoint deadline) {
  const auto left =
      std::chrono::floor<std::chrono::milliseconds>((deadline - Now()) / kReplyShare * (kReplyShare - 1))
          .count();
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 1, std::numeric_limits<uint32_t>::max()));
}

Result<LeasedBlock> BlockFromWire(const v1::AcquiredBlock& wire) {
  if (wire.key().size() != KVTIER_KEY_BYTES)
    return Status(Code::kInternal, "the daemon sent a key of another size");
  if (wire.extents_size() != 1)
    return Status(Code::kUnimplemented, "the daemon spread a block over several places");
  const v1::Extent& extent = wire.extents(0);
  LeasedBlock block;
  std::memcpy(block.info.key, wire.key().data(), KVTIER_KEY_BYTES);
  block.info.position = wire.first_position();
  block.info.tokens = wire.tokens();
  block.info.precision = static_cast<kvtier_precision>(wire.precision());
  block.info.served_from = wire.served_from();
  block.info.image_bytes = extent.bytes();
  block.info.k_error = wire.k_error();
  block.info.v_error = wire.v_error();
  block.arena = extent.arena();
  block.slot = extent.slot();
  block.offset = extent.offset();
  block.bytes = extent.bytes();
  block.slot_epoch = extent.slot_epoch();
  return block;
}

/// Adds a block once its arena is mapped.
Status AddBlock(Lease& lease, const v1::AcquiredBlock& wire, TimePoint deadline) {
  KVTIER_ASSIGN(const LeasedBlock block, BlockFromWire(wire));
  const std::shared_ptr<const Arena> arena = lease.connection->arenas().WaitFor(block.arena, deadline);
  if (arena == nullptr)
    return Status(Code::kDeadlineExceeded, "the arena of a block was not offered in time");
  KVTIER_TRY(arena->At(block.slot, block.offset, block.bytes).status());
  lease.blocks.push_back(block);
  return Status::Ok();
}

/// The tail among the reply's that continues the query.
std::optional<size_t> ChooseTail(const Query& query, const v1::AcquireReply& reply) {
  std::vector<v1::TailChild> children(reply.tails_size());
  for (int i = 0; i < reply.tails_size(); ++i) {
    children[i].set_tokens(reply.tails(i).tokens());
    children[i].set_key(reply.tails(i).key());
  }
  return ChooseTail(query, static_cast<size_t>(reply.run_size()), children);
}

/// Takes the reply's blocks over. Errors: why there is none.
Status FillLease(Lease& lease, const Query& query, const v1::AcquireReply& reply, TimePoint deadline) {
  Status stopped;
  for (const v1::AcquiredBlock& wire : reply.run()) {
    stopped = AddBlock(lease, wire, deadline);
    if (!stopped.ok()) break;
  }
  const std::optional<size_t> tail = stopped.ok() ? ChooseTail(query, reply) : std::nullopt;
  if (tail.has_value()) stopped = AddBlock(lease, reply.tails(static_cast<int>(*tail)), deadline);
  if (!lease.blocks.empty()) return Status::Ok();
  if (!stopped.ok()) return stopped;
  const Code why = reply.stopped_by() == 0 ? Code::kNotFound : static_cast<Code>(reply.stopped_by());
  return Status(why, "no block of the query is there");
}

v1::ReleaseRequest ReleaseOf(const Connection& connection, uint64_t lease) {
  v1::ReleaseRequest request;
  request.set_session_token(connection.token());
  request.set_lease(lease);
  return request;
}

void ReleaseInBackground(Connection& connection, v1::ReleaseRequest request) {
  connection.rpc().ReleaseAsync(std::move(request), Now() + kBackgroundReleaseTimeout);
}

v1::AcquireRequest MakeRequest(const Connection& connection, uint32_t remote_model, uint64_t lease,
                               const Query& query, const AcquireOptions& options, TimePoint deadline) {
  const size_t limit = connection.welcome().limits().keys_per_call();
  const auto asked = query.full.first(std::min(query.full.size(), limit));
  v1::AcquireRequest request;
  request.set_session_token(connection.token());
  request.set_model(remote_model);
  request.set_lease(lease);
  request.set_parent(query.refs[0].parent, KVTIER_KEY_BYTES);
  request.set_keys(KeysToAsk(query, asked));
  request.set_want_tails(query.wants_tails() && asked.size() == query.full.size());
  request.set_min_precision(static_cast<v1::Precision>(options.min_precision));
  request.set_ttl_ms(options.ttl_ms);
  request.set_max_block_bytes(options.max_block_bytes);
  request.set_deadline_ms(DaemonDeadlineMs(deadline));
  return request;
}

}  // namespace

void Lease::StartTtl(TimePoint asked, Duration ttl) {
  ttl_ns_ = ttl.count();
  expires_ns_ = (asked + ttl).time_since_epoch().count();
}

void Lease::NoteIfDamaged(size_t index, const Status& status) {
  if (status.code() != Code::kDataLoss) return;
  const std::lock_guard lock(mutex_);
  if (damaged_.size() < kMaxDamagedTold) damaged_.insert(index);
}

std::string Lease::DamagedKeys() const {
  const std::lock_guard lock(mutex_);
  std::string keys;
  for (const size_t index : damaged_) {
    keys.append(reinterpret_cast<const char*>(blocks[index].info.key), KVTIER_KEY_BYTES);
  }
  return keys;
}

Status Lease::CheckAndRenew(TimePoint now) {
  if (!connection->alive()) return Status(Code::kStale, "the session of the lease has ended");
  const int64_t left_ns = expires_ns_ - now.time_since_epoch().count();
  if (left_ns <= 0) return Status(Code::kStale, "the lease has expired");
  if (left_ns * 2 > ttl_ns_) return Status::Ok();

  v1::RenewRequest request;
  request.set_session_token(connection->token());
  request.set_lease(id);
  request.set_ttl_ms(static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Duration(ttl_ns_)).count()));
  v1::RenewReply reply;
  const Status renewed =
      connection->rpc().Call(request, reply, now + std::min(Duration(left_ns), kRenewTimeout));
  if (renewed.ok()) StartTtl(now, Duration(ttl_ns_));
  if (renewed.code() == Code::kStale) expires_ns_ = 0;
  // Otherwise it goes on until it expires.
  return renewed.code() == Code::kStale ? renewed : Status::Ok();
}

Result<std::shared_ptr<Lease>> Acquire(Client& client, const std::shared_ptr<const Model>& model,
                                       const Query& query, const AcquireOptions& options,
                                       TimePoint deadline) {
  std::shared_ptr<Lease> lease;
  KVTIER_TRY(client.OnConnection(deadline, [&](const std::shared_ptr<Connection>& connection) -> Status {
    KVTIER_ASSIGN(const uint32_t remote_model, connection->RemoteModel(*model, deadline));
    lease = std::make_shared<Lease>(connection, model, connection->NextId());
    const v1::AcquireRequest request =
        MakeRequest(*connection, remote_model, lease->id, query, options, deadline);
    const TimePoint asked = Now();
    v1::AcquireReply reply;
    Status status = connection->rpc().Call(request, reply, deadline);
    const bool maybe_granted =
        status.code() == Code::kDeadlineExceeded || reply.run_size() + reply.tails_size() > 0;
    if (!RunCounts(query)) reply.clear_run();
    if (status.ok()) {
      lease->StartTtl(asked, std::chrono::milliseconds(reply.ttl_ms()));
      status = FillLease(*lease, query, reply, deadline);
    }
    // The daemon may have granted it although the reply was lost or is of no use.
    if (!status.ok() && maybe_granted) ReleaseInBackground(*connection, ReleaseOf(*connection, lease->id));
    return status;
  }));
  return lease;
}

Status Release(const Lease& lease, TimePoint deadline) {
  if (!lease.connection->alive()) return Status(Code::kStale, "the session of the lease has ended");
  v1::ReleaseRequest request = ReleaseOf(*lease.connection, lease.id);
  request.set_damaged_keys(lease.DamagedKeys());
  v1::ReleaseReply reply;
  const Status status = lease.connection->rpc().Call(request, reply, deadline);
  if (status.code() == Code::kUnauthenticated)
    return Status(Code::kStale, "the session of the lease has ended");
  // gRPC takes a call back at its deadline, so the daemon may never see this one.
  if (status.code() == Code::kDeadlineExceeded) ReleaseInBackground(*lease.connection, std::move(request));
  return status;
}

}  // namespace kvtier::client
