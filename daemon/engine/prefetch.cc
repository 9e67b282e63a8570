#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {

Status EngineImpl::CheckPrefetch(const Prefetch& c) {
  const Session* session = FindSession(c.session);
  if (session == nullptr) return Status(Code::kStale, "the session is not open");
  KVTIER_TRY(CheckModel(*session, c.model));
  if (c.keys.size() > kMaxKeysPerCall) return Status(Code::kInvalidArgument, "too many keys");
  if (c.target.value >= ladder_.tiers().size() || ladder_.at(c.target).cold()) {
    return Status(Code::kInvalidArgument, "the target is a cold tier, or none");
  }
  if (prefetches_.size() >= kMaxOperations) return Status(Code::kResourceExhausted, "too many prefetches");
  if (session->tickets.contains(c.ticket)) return Status(Code::kAlreadyExists, "the ticket id is in use");
  if (session->tickets.size() >= kMaxTicketsPerSession) {
    return Status(Code::kResourceExhausted, "too many tickets in this session");
  }
  return Status::Ok();
}

bool EngineImpl::Handle(Prefetch& c) {
  if (cursor_ == 0) {
    if (Status valid = CheckPrefetch(c); !valid.ok()) {
      if (c.reply) c.reply(std::move(valid));
      return true;
    }
    current_op_ = OpId{next_id_++};
    PrefetchOp& op = prefetches_[current_op_];
    op.id = current_op_;
    op.session = c.session;
    op.ticket = c.ticket;
    OpenTicket(*FindSession(c.session), c.ticket, op.id)->is_put = false;
    metrics_.prefetch_requested.Add(c.keys.size());
  }
  PrefetchOp& op = prefetches_.at(current_op_);
  const Session& session = *FindSession(c.session);
  for (; cursor_ < c.keys.size(); ++cursor_) {
    if (budget_ == 0) return false;
    --budget_;
    Code why = Code::kOk;
    const EntryId id = FindReadable(session, c.model, c.keys[cursor_], why);
    if (id != kNoEntry) PrefetchBlock(op, id, c.target);
  }
  op.open = false;
  if (c.reply) c.reply(op.in_flight);
  if (op.in_flight == 0) FinishPrefetch(op.id);
  return true;
}

void EngineImpl::PrefetchBlock(PrefetchOp& op, EntryId id, TierId target) {
  const Entry& entry = table_.at(id);
  for (const Tier& tier : ladder_.tiers()) {
    const CopyState state = table_.copy(entry, tier.id).state;
    if (tier.host() && state == CopyState::kWriting) return;  // on its way
    // What stands on a GPU above is no nearer to who reads from the target.
    const bool near_enough = tier.id == target || (tier.id < target && tier.host());
    if (near_enough && state == CopyState::kPresent) return;
  }
  const TierId source = BestSource(entry);
  if (table_.copy(entry, target).state != CopyState::kAbsent) return;
  if (!CouldTake(ladder_.at(target), entry, source, Purpose::kPromote)) return;
  const TransferId transfer = StartTransfer({.entry = id,
                                             .purpose = Purpose::kPromote,
                                             .from = source,
                                             .to = target,
                                             .deadline = now_ + kBackgroundDeadline,
                                             .staged = std::nullopt,
                                             .waiter = Waiter{Waiter::Kind::kPrefetch, op.id}});
  op.transfers.push_back(transfer);
  ++op.in_flight;
}

void EngineImpl::OnPrefetchTransfer(const Waiter& waiter, const Status& status) {
  if (status.ok()) metrics_.prefetch_moved.Add();
  if (status.code() == Code::kCancelled) metrics_.prefetch_cancelled.Add();
  const auto found = prefetches_.find(waiter.op);
  if (found == prefetches_.end()) return;
  PrefetchOp& op = found->second;
  KVTIER_CHECK(op.in_flight > 0);
  if (--op.in_flight == 0 && !op.open) FinishPrefetch(op.id);
}

void EngineImpl::FinishPrefetch(OpId id) {
  const auto node = prefetches_.extract(id);
  CloseTicket(node.mapped().session, node.mapped().ticket, PutReply{});
}

bool EngineImpl::Handle(Cancel& c) {
  const Ticket* ticket = FindTicket(c.session, c.ticket);
  if (ticket == nullptr) {
    Fail(c.reply, Code::kStale, "no such ticket");
    return true;
  }
  std::vector<TransferId> transfers;
  if (const auto prefetch = prefetches_.find(ticket->op); prefetch != prefetches_.end()) {
    transfers = prefetch->second.transfers;
  } else if (const auto put = puts_.find(ticket->op); put != puts_.end()) {
    for (const PutOp::Block& block : put->second.blocks) {
      if (block.settled || !block.source) continue;
      for (const Tier& tier : ladder_.tiers()) transfers.push_back(ladder_.WriterOf(block.entry, tier.id));
    }
  }
  for (const TransferId id : transfers) {
    const auto transfer = transfers_.find(id);
    // What somebody else waits for as well goes on.
    if (transfer == transfers_.end() || transfer->second.waiters.size() > 1) continue;
    AbortSeeking(id, Code::kCancelled);
  }
  if (c.reply) c.reply(Done{});
  return true;
}

}  // namespace kvtier
