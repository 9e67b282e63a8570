#include <algorithm>
#include <utility>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"
#include "tiers/cold_tail.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

/// What a client is told when the promotion that it waited for fails.
Code StopCode(const Status& status) {
  switch (status.code()) {
    case Code::kResourceExhausted:
    case Code::kDeadlineExceeded:
    case Code::kUnavailable:
      return status.code();
    default:
      return Code::kNotFound;  // corrupt or removed meanwhile: a miss
  }
}

}  // namespace

Status EngineImpl::CheckAcquire(const Acquire& c) {
  const Session* session = FindSession(c.session);
  if (session == nullptr) return Status(Code::kStale, "the session is not open");
  KVTIER_TRY(CheckModel(*session, c.model));
  if (c.keys.size() > kMaxKeysPerCall) return Status(Code::kInvalidArgument, "too many keys");
  if (session->leases.contains(c.lease)) return Status(Code::kAlreadyExists, "the lease id is in use");
  if (session->leases.size() >= options_.limits.leases_per_session) {
    return Status(Code::kResourceExhausted, "too many leases in this session");
  }
  if (acquires_.size() >= kMaxOperations) return Status(Code::kResourceExhausted, "too many acquires wait");
  return Status::Ok();
}

AcquireOp& EngineImpl::StartAcquire(Acquire& c) {
  const OpId id{next_id_++};
  AcquireOp& op = acquires_[id];
  op.id = id;
  op.session = c.session;
  op.lease = c.lease;
  op.model = c.model;
  op.deadline = current_->deadline;
  op.started = now_;
  const Duration ttl = c.ttl > Duration{} ? c.ttl : options_.limits.default_lease_ttl;
  op.ttl = std::min(ttl, options_.limits.max_lease_ttl);
  op.want_tails = c.want_tails;
  op.min_precision = c.min_precision;
  op.max_block_bytes = c.max_block_bytes;
  op.asked = c.keys.size();
  op.items.reserve(c.keys.size());
  FindSession(c.session)->leases[c.lease].pending = id;
  current_op_ = id;
  return op;
}

bool EngineImpl::Handle(Acquire& c) {
  if (cursor_ == 0) {
    if (Status valid = CheckAcquire(c); !valid.ok()) {
      if (c.reply) c.reply(std::move(valid));
      return true;
    }
    StartAcquire(c);
  }
  AcquireOp& op = acquires_.at(current_op_);
  Session& session = *FindSession(c.session);
  for (; cursor_ < c.keys.size(); ++cursor_) {
    if (budget_ == 0) return false;
    --budget_;
    Code why = Code::kOk;
    const EntryId id = FindReadable(session, c.model, c.keys[cursor_], why);
    if (id != kNoEntry && AddAcquireItem(op, session, id, op.items, why)) continue;
    op.stopped_by = why;
    if (why == Code::kNotFound) CountMiss(session, c.keys[cursor_]);
    break;
  }
  op.reply = std::move(c.reply);
  const bool lease_is_full = op.stopped_by == Code::kResourceExhausted;
  CloseAcquireWalk(op, session, c);
  if (lease_is_full && c.max_block_bytes == 0) ReadAhead(session, c, cursor_);
  return true;
}

/// What follows a run that was as long as the lease may be is asked for next: what of it is not in host
/// memory comes there meanwhile.
void EngineImpl::ReadAhead(const Session& session, const Acquire& c, size_t from) {
  const size_t end = std::min(c.keys.size(), from + kReadAheadBlocks);
  for (size_t i = from; i < end && budget_ > 0; ++i) {
    --budget_;
    Code why = Code::kOk;
    const EntryId id = FindReadable(session, c.model, c.keys[i], why);
    if (id == kNoEntry) return;
    const Entry& entry = table_.at(id);
    const bool up = std::ranges::any_of(ladder_.tiers(), [&](const Tier& tier) {
      return tier.host() && table_.copy(entry, tier.id).state != CopyState::kAbsent;
    });
    if (up) continue;
    const TierId source = BestSource(entry);
    if (ReadsInPlace(session, entry, source)) continue;
    const std::optional<TierId> target = PromotionTarget(entry, source);
    if (!target) return;
    StartTransfer({.entry = id,
                   .purpose = Purpose::kPromote,
                   .from = source,
                   .to = *target,
                   .deadline = now_ + kBackgroundDeadline,
                   .staged = std::nullopt,
                   .waiter = std::nullopt});
  }
}

bool EngineImpl::AddAcquireItem(AcquireOp& op, Session& session, EntryId id,
                                std::vector<AcquireOp::Item>& items, Code& why) {
  const Entry& entry = table_.at(id);
  const Precision least = std::max(op.min_precision, entry.floor);
  std::optional<TierId> host, other;  // best copies, in host memory and elsewhere
  why = Code::kNotFound;
  for (const Tier& tier : ladder_.tiers()) {
    const Precision precision = entry.precision[tier.id.value];
    if (precision == Precision::kNone || precision < least) continue;
    if (!tier.reads.Allows(now_)) {
      why = Code::kUnavailable;
      continue;
    }
    std::optional<TierId>& best = tier.host() ? host : other;
    if (!best || precision > entry.precision[best->value]) best = tier.id;
  }
  const std::optional<TierId> source = host ? host : other;
  if (!source) return false;
  const bool ready = host || ReadsInPlace(session, entry, *other);
  if (!ready) DropLesserCopies(id, least);
  const Copy& copy = table_.copy(entry, *source);
  const std::optional<TierId> reader = ready ? source : PromotionTarget(entry, *other);
  const uint64_t bytes =
      ready ? copy.place_bytes()
            : ladder_.ClassOf(entry, copy.codec, ladder_.RungBytes(entry, *source, *FindCodec(copy.codec)))
                  .slot_bytes;
  if (!reader || !FitsLeaseShare(session, *reader, bytes, op.promised_bytes[reader->value])) {
    why = Code::kResourceExhausted;
    return false;
  }
  if (!ready) op.promised_bytes[reader->value] += bytes;
  PinForLease(session, session.leases.at(op.lease), id, *source);
  items.push_back({.entry = id, .pinned = *source, .served_from = *source, .ready = ready});
  return true;
}

bool EngineImpl::ReadsInPlace(const Session& session, const Entry& entry, TierId cold) const {
  const Tier& tier = ladder_.at(cold);
  const Copy& copy = table_.copy(entry, cold);
  if (!session.maps[cold.value] || copy.in_parts) return false;
  // A lease lasts, and may be renewed: a segment that is being emptied does not wait for it, and however the
  // leased blocks are spread, most segments can be.
  if (copy.container == tier.draining_segment) return false;
  if (tier.leased_copies.contains(copy.container)) return true;
  const double most = options_.limits.lease_share * static_cast<double>(tier.segments->segment_limit());
  return tier.leased_copies.empty() || static_cast<double>(tier.leased_copies.size() + 1) <= most;
}

void EngineImpl::CloseAcquireWalk(AcquireOp& op, Session& session, const Acquire& c) {
  const bool run_ends_here =
      op.stopped_by == Code::kOk || op.stopped_by == Code::kNotFound || op.stopped_by == Code::kPending;
  if (op.want_tails && run_ends_here) {
    std::vector<EntryId> tails;
    CollectTails(session, c.model, op.items.empty() ? c.parent : c.keys[op.items.size() - 1], tails);
    for (const EntryId id : tails) {
      Code why = Code::kOk;
      if (!AddAcquireItem(op, session, id, op.tails, why)) continue;
    }
  }
  // Everything that is here is pinned now: making room for the rest cannot drive it out.
  for (uint32_t i = 0; i < op.items.size(); ++i) {
    if (op.items[i].ready) continue;
    if (StartAcquirePromotion(op, op.items[i], {Waiter::Kind::kAcquire, op.id, i})) continue;
    CutAcquire(op, session, i, Code::kResourceExhausted);
    break;
  }
  for (uint32_t i = 0; i < op.tails.size(); ++i) {
    if (op.tails[i].ready || op.tails[i].failed) continue;
    if (!StartAcquirePromotion(op, op.tails[i], {Waiter::Kind::kAcquireTail, op.id, i})) {
      DropTail(op, session, op.tails[i]);
    }
  }
  timers_.Add({op.deadline, TimerKind::kAcquire, op.id.value});
  AdvanceAcquire(op.id);
}

bool EngineImpl::StartAcquirePromotion(const AcquireOp& op, const AcquireOp::Item& item, Waiter waiter) {
  const Entry& entry = table_.at(item.entry);
  for (const Tier& tier : ladder_.tiers()) {
    const Copy& copy = table_.copy(entry, tier.id);
    if (!tier.host() || copy.state != CopyState::kWriting) continue;
    JoinTransfer(ladder_.WriterOf(item.entry, tier.id), waiter, op.deadline);
    return true;
  }
  const std::optional<TierId> target = PromotionTarget(entry, item.pinned);
  if (!target) return false;
  return StartTransfer({.entry = item.entry,
                        .purpose = Purpose::kPromote,
                        .from = item.pinned,
                        .to = *target,
                        .deadline = op.deadline,
                        .staged = std::nullopt,
                        .waiter = waiter,
                        .most = MostToRead(op, entry, item.pinned)}) != TransferId{};
}

/// The rung at which a block is read that must come to host memory.
Precision EngineImpl::MostToRead(const AcquireOp& op, const Entry& entry, TierId from) const {
  const Precision least = std::max({op.min_precision, entry.floor, Precision::kInt2});
  if (!table_.copy(entry, from).in_parts) return Precision::kBits16;
  if (op.deadline - now_ < options_.limits.near_deadline) return least;
  if (op.max_block_bytes == 0) return Precision::kBits16;
  for (const ColdPart part : {ColdPart::kVTail, ColdPart::kKTail}) {
    const Codec& rung = RungOf(part);
    if (ladder_.RungBytes(entry, from, rung) <= op.max_block_bytes) return std::max(least, rung.precision);
  }
  return least;
}

/// A host copy that was read without its tails stands in the way of a reader who wants them.
void EngineImpl::DropLesserCopies(EntryId id, Precision least) {
  for (const Tier& tier : ladder_.tiers()) {
    const Precision own = table_.at(id).precision[tier.id.value];
    if (tier.host() && own != Precision::kNone && own < least && MayLeave(id, tier.id)) {
      EvictCopy(id, tier.id, Reason::kCapacity);
    }
  }
}

std::optional<TierId> EngineImpl::PromotionTarget(const Entry& entry, TierId from) const {
  for (size_t i = ladder_.tiers().size(); i-- > 0;) {
    const Tier& tier = ladder_.tiers()[i];
    if (tier.host() && table_.copy(entry, tier.id).state == CopyState::kAbsent &&
        CouldTake(tier, entry, from, Purpose::kPromote)) {
      return tier.id;
    }
  }
  return std::nullopt;
}

void EngineImpl::OnAcquireTransfer(const Waiter& waiter, const Transfer& transfer, const Status& status) {
  const auto found = acquires_.find(waiter.op);
  if (found == acquires_.end()) return;
  AcquireOp& op = found->second;
  Session& session = *FindSession(op.session);
  const bool is_tail = waiter.kind == Waiter::Kind::kAcquireTail;
  std::vector<AcquireOp::Item>& items = is_tail ? op.tails : op.items;
  if (waiter.index >= items.size() || items[waiter.index].entry != transfer.entry)
    return;  // cut off meanwhile
  AcquireOp::Item& item = items[waiter.index];
  if (item.ready || item.failed) return;
  const Entry& entry = table_.at(item.entry);
  Code why = status.ok() ? Code::kOk : StopCode(status);
  if (status.ok()) {
    const Copy& copy = table_.copy(entry, transfer.to);
    if (entry.precision[transfer.to.value] < std::max(op.min_precision, entry.floor)) why = Code::kNotFound;
    if (!FitsLeaseShare(session, transfer.to, copy.place_bytes())) why = Code::kResourceExhausted;
  }
  if (why == Code::kOk) {
    Lease& lease = session.leases.at(op.lease);
    PinForLease(session, lease, item.entry, transfer.to);
    UnpinForLease(session, lease, item.entry, item.pinned);
    item.pinned = transfer.to;
    item.ready = true;
  } else if (is_tail) {
    DropTail(op, session, item);
  } else {
    CutAcquire(op, session, waiter.index, why);
  }
  AdvanceAcquire(op.id);
}

void EngineImpl::CutAcquire(AcquireOp& op, Session& session, size_t at, Code why) {
  if (at >= op.items.size()) return;
  Lease& lease = session.leases.at(op.lease);
  for (AcquireOp::Item& tail : op.tails) DropTail(op, session, tail);
  while (op.items.size() > at) {
    UnpinForLease(session, lease, op.items.back().entry, op.items.back().pinned);
    op.items.pop_back();
  }
  op.ready_prefix = std::min(op.ready_prefix, at);
  op.stopped_by = why;
}

void EngineImpl::DropTail(AcquireOp& op, Session& session, AcquireOp::Item& tail) {
  if (tail.failed) return;
  tail.failed = true;
  UnpinForLease(session, session.leases.at(op.lease), tail.entry, tail.pinned);
}

void EngineImpl::AdvanceAcquire(OpId id) {
  AcquireOp& op = acquires_.at(id);
  while (op.ready_prefix < op.items.size() && op.items[op.ready_prefix].ready) ++op.ready_prefix;
  const bool tails_settled = std::all_of(op.tails.begin(), op.tails.end(), [](const AcquireOp::Item& tail) {
    return tail.ready || tail.failed;
  });
  if (op.ready_prefix == op.items.size() && tails_settled) FinishAcquire(id);
}

void EngineImpl::FinishAcquire(OpId id) {
  const auto found = acquires_.find(id);
  KVTIER_CHECK(found != acquires_.end());
  AcquireOp op = std::move(found->second);
  acquires_.erase(found);
  timers_.Cancel({op.deadline, TimerKind::kAcquire, op.id.value});
  Session& session = *FindSession(op.session);
  for (AcquireOp::Item& tail : op.tails) {
    if (!tail.ready) DropTail(op, session, tail);
  }
  AcquireReply reply;
  reply.stopped_by = op.stopped_by;
  for (const AcquireOp::Item& item : op.items) reply.run.push_back(DescribeAcquired(item));
  for (const AcquireOp::Item& tail : op.tails) {
    if (!tail.failed) reply.tails.push_back(DescribeAcquired(tail));
  }
  CountAcquire(op);
  Lease& lease = session.leases.at(op.lease);
  if (lease.pins.empty()) {
    session.leases.erase(op.lease);  // nothing to hold, nothing to release
  } else {
    lease.pending = {};
    lease.expires = now_ + op.ttl;
    timers_.Add({lease.expires, TimerKind::kLease, op.session.value, op.lease.value});
    metrics_.leases_granted.Add();
    metrics_.leases_live.Add(1);
    reply.expires = lease.expires;
  }
  if (op.reply) op.reply(std::move(reply));
}

void EngineImpl::FailAcquire(OpId id, Code code) {
  const auto found = acquires_.find(id);
  KVTIER_CHECK(found != acquires_.end());
  AcquireOp op = std::move(found->second);
  acquires_.erase(found);
  timers_.Cancel({op.deadline, TimerKind::kAcquire, op.id.value});
  EndLease(*FindSession(op.session), op.lease);
  Fail(op.reply, code, "the acquire was given up");
}

void EngineImpl::CountAcquire(const AcquireOp& op) {
  metrics_.acquires.Add();
  metrics_.acquired_blocks.Add(op.items.size());
  metrics_.missed_blocks.Add(op.asked - op.items.size());
  if (!op.items.empty() && op.items.size() < op.asked) metrics_.partial_acquires.Add();
  TierId slowest{};
  for (const AcquireOp::Item& item : op.items) {
    const Copy& copy = table_.copy(item.entry, item.pinned);
    const auto precision = static_cast<size_t>(FindCodec(copy.codec)->precision);
    metrics_.tier[item.served_from.value].hits[precision].Add();
    metrics_.served_errors[precision][0].Observe(copy.k_error);
    metrics_.served_errors[precision][1].Observe(copy.v_error);
    slowest = std::max(slowest, item.served_from);
    CountUse(table_.at(item.entry));
  }
  if (op.items.empty()) return;
  metrics_.tier[slowest.value].acquire_latency.Observe(static_cast<uint64_t>((now_ - op.started).count()));
}

Place EngineImpl::PlaceForClients(const Copy& copy) const {
  Place place = ladder_.PlaceOf(copy);
  const Tier& tier = ladder_.at(copy.tier);
  if (tier.has_slots()) return place;
  place.slot = place.container;
  place.offset += CxlSegmentOffset(place.container, tier.options.segment_bytes) + kColdRecordHeaderBytes;
  place.container = StoreArenaId(tier.id).value;
  return place;
}

AcquiredBlock EngineImpl::DescribeAcquired(const AcquireOp::Item& item) const {
  const Entry& entry = table_.at(item.entry);
  const Copy& copy = table_.copy(entry, item.pinned);
  return {.key = entry.key,
          .tokens = entry.tokens,
          .first_position = entry.first_position,
          .codec = copy.codec,
          .precision = FindCodec(copy.codec)->precision,
          .served_from = item.served_from,
          .image_bytes = copy.image_bytes,
          .place = PlaceForClients(copy),
          .k_error = copy.k_error,
          .v_error = copy.v_error};
}

}  // namespace kvtier
