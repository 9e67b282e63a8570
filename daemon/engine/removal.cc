#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {

void EngineImpl::LeaveTable(EntryId id, TierId tier, Reason reason) {
  Entry& entry = table_.at(id);
  TierMetrics& metrics = *ladder_.at(tier).metrics;
  switch (reason) {
    case Reason::kCapacity:
      metrics.evicted_capacity.Add();
      metrics_.stranded_blocks.Add(entry.children);
      ghosts_.Add(entry.tenant, entry.key);
      break;
    case Reason::kRemoved:
    case Reason::kExpired:
      metrics.evicted_removed.Add();
      break;
    case Reason::kCorrupt:
      metrics.evicted_corrupt.Add();
      break;
    case Reason::kSuperseded:
      metrics.evicted_superseded.Add();
      break;
  }
  if (entry.is_tail) table_.RemoveTail(id);
  const EntryId parent = table_.Find(entry.tenant, entry.parent);
  if (parent != kNoEntry && table_.at(parent).children > 0) --table_.at(parent).children;
  table_.Detach(id);
}

void EngineImpl::ForgetIfGone(EntryId id) {
  if (!table_.live(id) || table_.at(id).in_table || table_.at(id).HasAnyCopy()) return;
  table_.Erase(id);
}

void EngineImpl::EvictCopy(EntryId id, TierId tier, Reason reason) {
  ladder_.Drop(id, tier);
  ++changes_;
  const Entry& entry = table_.at(id);
  if (entry.in_table && !entry.Stored() && !entry.storing) LeaveTable(id, tier, reason);
  ForgetIfGone(id);
}

void EngineImpl::RemoveBlock(EntryId id, Reason reason) {
  const Entry& entry = table_.at(id);
  KVTIER_CHECK(entry.in_table);
  ++changes_;
  if (entry.Stored()) {
    TierId highest{};
    while (!entry.Has(highest.value)) ++highest.value;
    LeaveTable(id, highest, reason);
  } else {
    table_.Detach(id);  // a put is still bringing it: that ends as dropped
  }
  for (const Tier& tier : ladder_.tiers()) {
    if (entry.copies[tier.id.value].state == CopyState::kPresent) ladder_.Drop(id, tier.id);
  }
  for (const Tier& tier : ladder_.tiers()) {
    const Copy& copy = entry.copies[tier.id.value];
    if (copy.state == CopyState::kWriting) AbortSeeking(copy.transfer, Code::kAborted);
  }
  ForgetIfGone(id);
}

void EngineImpl::Quarantine(EntryId id, TierId tier) {
  if (!table_.at(id).Has(tier.value)) return;
  metrics_.quarantined_blocks.Add();
  EvictCopy(id, tier, Reason::kCorrupt);
}

bool EngineImpl::Handle(Remove& c) {
  Session* session = FindSession(c.session);
  if (session == nullptr) {
    Fail(c.reply, Code::kStale, "the session is not open");
    return true;
  }
  if (cursor_ == 0) {
    Status valid = CheckModel(*session, c.model);
    if (valid.ok() && c.keys.size() > kMaxKeysPerCall)
      valid = Status(Code::kInvalidArgument, "too many keys");
    if (!valid.ok()) {
      if (c.reply) c.reply(std::move(valid));
      return true;
    }
    removed_ = 0;
  }
  if (c.keys.empty()) {
    SweepOp* sweep = StartSweep(SweepOp::Kind::kClear);
    if (sweep == nullptr) {
      Fail(c.reply, Code::kResourceExhausted, "too many long operations");
      return true;
    }
    sweep->model = c.model;
    sweep->reply = std::move(c.reply);
    return true;
  }
  for (; cursor_ < c.keys.size(); ++cursor_) {
    if (budget_ == 0) return false;
    --budget_;
    const EntryId id = table_.Find(session->tenant, c.keys[cursor_]);
    if (id == kNoEntry || table_.at(id).model != c.model) continue;
    RemoveBlock(id, Reason::kRemoved);
    ++removed_;
  }
  if (c.reply) c.reply(removed_);
  return true;
}

}  // namespace kvtier
