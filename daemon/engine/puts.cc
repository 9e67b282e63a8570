#include <algorithm>
#include <utility>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Tails that one block may cover: as many as a parent keeps, twice over.
constexpr size_t kMaxSupersedes = 2 * kMaxTailsPerParent;
/// Blocks before one in its chain: positions beyond are no sequence.
constexpr uint64_t kMaxDepth = uint64_t{1} << 31;

}  // namespace

Status EngineImpl::CheckPut(const Put& c) {
  Session* session = FindSession(c.session);
  if (session == nullptr) return Status(Code::kStale, "the session is not open");
  KVTIER_TRY(CheckModel(*session, c.model));
  if (c.blocks.empty()) return Status(Code::kInvalidArgument, "a put of no blocks");
  if (c.blocks.size() > kMaxKeysPerCall) return Status(Code::kInvalidArgument, "too many blocks");
  if (c.durability == Durability::kDurable && !PersistentTier(session->tenant)) {
    return Status(Code::kFailedPrecondition, "there is no persistent tier for a durable put");
  }
  if (c.floor > MostExact(models_.at(c.model).spec.dtype)) {
    return Status(Code::kInvalidArgument, "the floor is above the precision of the model's KV, or unknown");
  }
  if (puts_.size() >= kMaxOperations) return Status(Code::kResourceExhausted, "too many puts wait");
  if (session->tickets.contains(c.ticket)) return Status(Code::kAlreadyExists, "the ticket id is in use");
  if (session->tickets.size() >= kMaxTicketsPerSession) {
    return Status(Code::kResourceExhausted, "too many tickets in this session");
  }
  return Status::Ok();
}

void EngineImpl::StartPut(Put& c) {
  const OpId id{next_id_++};
  PutOp& op = puts_[id];
  op.id = id;
  op.session = c.session;
  op.model = c.model;
  op.ticket = c.ticket;
  op.durability = c.durability;
  op.deadline = current_->deadline;
  op.blocks.resize(c.blocks.size());
  op.unsettled = static_cast<uint32_t>(c.blocks.size());
  OpenTicket(*FindSession(c.session), c.ticket, id);
  current_op_ = id;
}

bool EngineImpl::Handle(Put& c) {
  if (cursor_ == 0) {
    metrics_.puts_offered.Add(c.blocks.size());
    if (Status valid = CheckPut(c); !valid.ok()) {
      metrics_.puts_rejected.Add(c.blocks.size());
      if (c.reply) c.reply(std::move(valid));
      return true;
    }
    StartPut(c);
  }
  const OpId id = current_op_;
  for (; cursor_ < c.blocks.size(); ++cursor_) {
    if (budget_ == 0) return false;
    --budget_;
    AddPutBlock(puts_.at(id), c, static_cast<uint32_t>(cursor_));
  }
  PutOp& op = puts_.at(id);
  op.open = false;
  op.reply = std::move(c.reply);
  if (op.unsettled > 0) timers_.Add({op.deadline, TimerKind::kPut, id.value});
  AdvancePut(id);
  return true;
}

Status EngineImpl::CheckPutBlock(const Put&, const Model& model, const PutBlock& block) const {
  const uint32_t tokens_per_block = model.spec.tokens_per_block;
  if (block.tokens == 0 || block.tokens > tokens_per_block) {
    return Status(Code::kInvalidArgument, "tokens is not in 1..tokens_per_block");
  }
  if (block.first_position % tokens_per_block != 0 || block.first_position / tokens_per_block >= kMaxDepth) {
    return Status(Code::kInvalidArgument, "first position is not a multiple of tokens_per_block, or too far");
  }
  if (block.key == block.parent) return Status(Code::kInvalidArgument, "a block is not its own parent");
  if (block.supersedes.size() > kMaxSupersedes)
    return Status(Code::kInvalidArgument, "too many tails superseded");
  const uint64_t bytes = RawBlockBytes(ShapeOf(model.spec, block.first_position, block.tokens));
  if (bytes > kMaxBlockBytes) return Status(Code::kOutOfRange, "the block is larger than 64 MiB");
  if (block.source.raw.size() != bytes)
    return Status(Code::kOutOfRange, "the source is not as large as the block");
  return Status::Ok();
}

void EngineImpl::AddPutBlock(PutOp& op, Put& c, uint32_t index) {
  // Block by block, in a good reply: an UNAVAILABLE of the whole call is what a client sees of a daemon that
  // may still read the staging bytes, and it would end its session for it.
  if (draining_) return EndPut(op.id, index, Code::kUnavailable, metrics_.puts_rejected);
  const Model& model = models_.at(c.model);
  PutBlock& block = c.blocks[index];
  if (const Status valid = CheckPutBlock(c, model, block); !valid.ok()) {
    return EndPut(op.id, index, valid.code(), metrics_.puts_rejected);
  }
  op.blocks[index].supersedes = std::move(block.supersedes);
  const EntryId id = table_.Find(model.tenant, block.key);
  if (id != kNoEntry) return OfferPresent(op, index, id, c, block);
  const Result<EntryId> made = table_.Create(model.tenant, block.key);
  if (!made.ok()) return EndPut(op.id, index, made.status().code(), metrics_.puts_dropped);
  Entry& entry = table_.at(*made);
  entry.model = c.model;
  entry.parent = block.parent;
  entry.first_position = block.first_position;
  entry.tokens = block.tokens;
  entry.is_tail = block.tokens < model.spec.tokens_per_block;
  entry.floor = std::max(c.floor, model.spec.floor);
  entry.priority = c.priority;
  entry.born = clears_;
  entry.storing = true;
  if (c.ttl > Duration{}) {
    timers_.Add({now_ + c.ttl, TimerKind::kExpiry, made->value, entry.generation});
  }
  storing_[*made] = {Waiter::Kind::kPut, op.id, index};
  op.blocks[index].entry = *made;
  op.blocks[index].generation = entry.generation;
  op.blocks[index].source = std::move(block.source);
  StorePutBlock(op, index, 0);
}

void EngineImpl::OfferPresent(PutOp& op, uint32_t index, EntryId id, const Put& c, const PutBlock& block) {
  const Entry& entry = table_.at(id);
  const bool same = entry.model == c.model && entry.parent == block.parent && entry.tokens == block.tokens &&
                    entry.first_position == block.first_position;
  if (!same) return EndPut(op.id, index, Code::kInvalidArgument, metrics_.puts_rejected);
  if (!entry.Stored()) {
    const Waiter storer = storing_.at(id);
    if (storer.op == op.id) {  // twice in one call
      return EndPut(op.id, index, Code::kInvalidArgument, metrics_.puts_rejected);
    }
    op.blocks[index].entry = id;
    puts_.at(storer.op).blocks[storer.index].joined.push_back({Waiter::Kind::kPutJoin, op.id, index});
    return;
  }
  ladder_.Touch(id);
  const TierId best = BestSource(entry);
  if (op.durability == Durability::kDurable) StartPersist(op, index, id);
  RemoveSuperseded(id, op.blocks[index].supersedes);
  SettlePut(op.id, index,
            {.code = Code::kAlreadyExists, .precision = entry.precision[best.value], .tier = best},
            metrics_.puts_present);
}

void EngineImpl::StorePutBlock(PutOp& op, uint32_t index, uint32_t first_tier) {
  PutOp::Block& block = op.blocks[index];
  const Entry& entry = table_.at(block.entry);
  const bool durable = op.durability == Durability::kDurable;
  for (uint32_t i = first_tier; i < ladder_.tiers().size(); ++i) {
    const Tier& tier = ladder_.tiers()[i];
    if (!CouldTake(tier, entry, std::nullopt, Purpose::kPut)) continue;
    const TransferId transfer =
        StartTransfer({.entry = block.entry,
                       .purpose = Purpose::kPut,
                       .from = std::nullopt,
                       .to = tier.id,
                       .deadline = op.deadline,
                       .staged = block.source,
                       .waiter = Waiter{Waiter::Kind::kPut, op.id, index},
                       .least = durable && tier.cold() ? Precision::kInt4 : Precision::kNone});
    KVTIER_CHECK(transfer != TransferId{});
    return;
  }
  EndPut(op.id, index, Code::kResourceExhausted, metrics_.puts_dropped);
}

void EngineImpl::OnPutTransfer(const Waiter& waiter, const Transfer& transfer, const Status& status) {
  PutOp& op = puts_.at(waiter.op);
  if (status.ok()) {
    const Precision precision = table_.at(transfer.entry).precision[transfer.to.value];
    if (op.durability == Durability::kDurable) StartPersist(op, waiter.index, transfer.entry);
    return SettlePut(op.id, waiter.index, {.code = Code::kOk, .precision = precision, .tier = transfer.to},
                     metrics_.puts_stored);
  }
  const bool may_go_lower = status.code() == Code::kResourceExhausted || status.code() == Code::kUnavailable;
  if (may_go_lower && now_ < op.deadline && table_.at(transfer.entry).in_table) {
    return StorePutBlock(op, waiter.index, transfer.to.value + 1);
  }
  EndPut(op.id, waiter.index, status.code(), metrics_.puts_dropped);
}

void EngineImpl::SettlePut(OpId id, uint32_t index, PutOutcome outcome, Counter& counter) {
  PutOp& op = puts_.at(id);
  PutOp::Block& block = op.blocks[index];
  KVTIER_CHECK(!block.settled && op.unsettled > 0);
  block.settled = true;
  block.outcome = outcome;
  block.source.reset();
  --op.unsettled;
  counter.Add();
  const auto storer = storing_.find(block.entry);
  if (storer != storing_.end() && storer->second.op == id && storer->second.index == index) {
    storing_.erase(storer);
    EndStoring(block, outcome);
  }
  AdvancePut(id);
}

void EngineImpl::EndPut(OpId id, uint32_t index, Code code, Counter& counter) {
  PutOutcome outcome;
  outcome.code = code;
  SettlePut(id, index, outcome, counter);
}

void EngineImpl::EndStoring(PutOp::Block& block, const PutOutcome& outcome) {
  const EntryId id = block.entry;
  Entry& entry = table_.at(id);
  entry.storing = false;
  const std::vector<Waiter> joined = std::move(block.joined);
  if (outcome.code == Code::kOk) {
    OnStored(id, block.supersedes);
  } else if (entry.in_table) {
    table_.Detach(id);
  }
  for (const Waiter& waiter : joined) {
    const auto other = puts_.find(waiter.op);
    if (other == puts_.end() || other->second.blocks[waiter.index].settled) continue;
    if (outcome.code != Code::kOk) {
      EndPut(waiter.op, waiter.index, outcome.code, metrics_.puts_dropped);
      continue;
    }
    if (other->second.durability == Durability::kDurable) StartPersist(other->second, waiter.index, id);
    SettlePut(waiter.op, waiter.index,
              {.code = Code::kAlreadyExists, .precision = outcome.precision, .tier = outcome.tier},
              metrics_.puts_present);
  }
  ForgetIfGone(id);
}

void EngineImpl::OnStored(EntryId id, const std::vector<Key>& supersedes) {
  const Entry& entry = table_.at(id);
  CountUse(entry);
  const EntryId parent = table_.Find(entry.tenant, entry.parent);
  if (parent != kNoEntry) ++table_.at(parent).children;
  if (entry.is_tail) {
    table_.AddTail(id);
    const std::vector<EntryId>& tails = table_.Tails(entry.tenant, entry.parent);
    if (tails.size() > kMaxTailsPerParent) RemoveBlock(tails.front(), Reason::kSuperseded);
  }
  RemoveSuperseded(id, supersedes);
}

void EngineImpl::RemoveSuperseded(EntryId by, const std::vector<Key>& keys) {
  const TenantId tenant = table_.at(by).tenant;
  const ModelId model = table_.at(by).model;
  for (const Key& key : keys) {
    const EntryId id = table_.Find(tenant, key);
    if (id == kNoEntry || id == by || !table_.at(id).is_tail || table_.at(id).model != model) continue;
    RemoveBlock(id, Reason::kSuperseded);
  }
}

void EngineImpl::StartPersist(PutOp& op, uint32_t index, EntryId id) {
  const Entry& entry = table_.at(id);
  const TierId tier = *PersistentTier(entry.tenant);
  for (const Tier& one : ladder_.tiers()) {
    if (one.cold() && one.options.persistent && entry.Has(one.id.value)) return;  // durable already
  }
  PutOp::Block& block = op.blocks[index];
  const Waiter waiter{Waiter::Kind::kDurable, op.id, index};
  const Copy& copy = table_.copy(entry, tier);
  if (copy.state == CopyState::kWriting) {
    JoinTransfer(ladder_.WriterOf(id, tier), waiter, now_ + kBackgroundDeadline);
  } else {
    const TierId source = BestSource(entry);
    const bool possible =
        copy.state == CopyState::kAbsent && CouldTake(ladder_.at(tier), entry, source, Purpose::kPersist);
    if (!possible) {
      block.durable = Code::kUnavailable;
      return;
    }
    StartTransfer({.entry = id,
                   .purpose = Purpose::kPersist,
                   .from = source,
                   .to = tier,
                   .deadline = now_ + kBackgroundDeadline,
                   .staged = std::nullopt,
                   .waiter = waiter});
  }
  block.persisting = true;
  ++op.persisting;
}

void EngineImpl::SettleDurable(OpId id, uint32_t index, Code code) {
  PutOp& op = puts_.at(id);
  PutOp::Block& block = op.blocks[index];
  KVTIER_CHECK(block.persisting && op.persisting > 0);
  block.persisting = false;
  block.durable = code;
  --op.persisting;
  AdvancePut(id);
}

void EngineImpl::AdvancePut(OpId id) {
  const auto found = puts_.find(id);
  if (found == puts_.end()) return;
  PutOp& op = found->second;
  if (op.open || op.unsettled > 0) return;
  timers_.Cancel({op.deadline, TimerKind::kPut, id.value});
  if (op.reply) {
    TouchHeadLast(op);
    PutReply reply;
    for (const PutOp::Block& block : op.blocks) reply.blocks.push_back(block.outcome);
    std::exchange(op.reply, nullptr)(std::move(reply));
  }
  if (op.persisting > 0) return;
  PutReply result;
  for (const PutOp::Block& block : op.blocks) {
    result.blocks.push_back(block.outcome);
    Code& code = result.blocks.back().code;
    if (block.durable != Code::kOk) code = block.durable;
    const bool safe = code == Code::kOk || code == Code::kAlreadyExists;
    if (op.durability == Durability::kDurable && !safe) metrics_.puts_not_durable.Add();
  }
  const SessionId session = op.session;
  const TicketId ticket = op.ticket;
  puts_.erase(found);
  CloseTicket(session, ticket, std::move(result));
}

void EngineImpl::TouchHeadLast(const PutOp& op) {
  // Blocks landed in any order: the tail of a chain is to go before its head.
  for (auto block = op.blocks.rbegin(); block != op.blocks.rend(); ++block) {
    if (block->outcome.code != Code::kOk || !table_.live(block->entry)) continue;
    const Entry& entry = table_.at(block->entry);
    if (entry.generation == block->generation && entry.in_table) ladder_.Touch(block->entry);
  }
}

void EngineImpl::ExpirePut(OpId id) {
  // Blocks that seek space end by their transfers' own deadline, those that are being written are read from
  // staging and must end by themselves: what is left waits for another put.
  for (uint32_t i = 0;; ++i) {
    const auto op = puts_.find(id);
    if (op == puts_.end() || i >= op->second.blocks.size()) return;
    const PutOp::Block& block = op->second.blocks[i];
    if (block.settled || block.source) continue;
    EndPut(id, i, Code::kDeadlineExceeded, metrics_.puts_dropped);
  }
}

}  // namespace kvtier
