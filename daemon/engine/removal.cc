#include <algorithm>

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

void EngineImpl::CountDeparture(EntryId id, TierId tier, Reason reason) {
  const Entry& entry = table_.at(id);
  Departure departure = Departure::kRemoved;
  if (reason == Reason::kCapacity) {
    departure = Departure::kEvicted;
    for (const Tier& other : ladder_.tiers()) {
      const bool stays = other.id > tier || other.options.kind == MediumKind::kGpu;
      if (stays && other.id != tier && entry.Has(other.id.value)) departure = Departure::kDemoted;
    }
  } else if (reason == Reason::kCorrupt) {
    departure = Departure::kCorrupt;
  } else if (reason == Reason::kSuperseded) {
    departure = Departure::kSuperseded;
  }
  const Copy& copy = table_.copy(entry, tier);
  ladder_.at(tier).metrics->residence[static_cast<size_t>(departure)].Observe(Tenths() - copy.since);
}

void EngineImpl::EvictCopy(EntryId id, TierId tier, Reason reason) {
  CountDeparture(id, tier, reason);
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
    if (table_.copy(entry, tier.id).state != CopyState::kPresent) continue;
    CountDeparture(id, tier.id, reason);
    ladder_.Drop(id, tier.id);
  }
  for (const Tier& tier : ladder_.tiers()) {
    const Copy& copy = table_.copy(entry, tier.id);
    if (copy.state == CopyState::kWriting) AbortSeeking(ladder_.WriterOf(id, tier.id), Code::kAborted);
  }
  ForgetIfGone(id);
}

void EngineImpl::Quarantine(EntryId id, TierId tier) {
  if (!table_.at(id).Has(tier.value)) return;
  metrics_.quarantined_blocks.Add();
  EvictCopy(id, tier, Reason::kCorrupt);
}

bool EngineImpl::OnColdTier(EntryId id) const {
  const Entry& entry = table_.at(id);
  return std::any_of(ladder_.tiers().begin(), ladder_.tiers().end(), [&](const Tier& tier) {
    return tier.cold() && table_.copy(entry, tier.id).state != CopyState::kAbsent;
  });
}

void EngineImpl::RemoveFor(Removal& removal, EntryId id) {
  const uint32_t generation = table_.at(id).generation;
  removal.was_on_disk |= OnColdTier(id);
  ++removal.blocks;
  RemoveBlock(id, Reason::kRemoved);
  const bool lingers = table_.live(id) && table_.at(id).generation == generation && OnColdTier(id);
  if (lingers) removal.rows.push_back({id, generation});
}

bool EngineImpl::ForgetsPending() const {
  return std::any_of(ladder_.tiers().begin(), ladder_.tiers().end(), [](const Tier& tier) {
    return tier.forgets_done < tier.forgets_ordered || !tier.to_erase.empty();
  });
}

uint64_t EngineImpl::ForgetsFailed() const {
  uint64_t failed = 0;
  for (const Tier& tier : ladder_.tiers()) failed += tier.forgets_failed;
  return failed;
}

void EngineImpl::HoldRemoval(Removal removal, TimePoint deadline, Reply<uint64_t> reply) {
  // A block that is not in the table may have left it a moment ago, for a reason of the tier's own.
  if (!removal.was_on_disk && !ForgetsPending()) {
    if (reply) reply(removal.blocks);
    return;
  }
  const OpId id{next_id_++};
  removals_.emplace(id, RemovalOp{.id = id,
                                  .deadline = deadline,
                                  .removal = std::move(removal),
                                  .forgets = std::nullopt,
                                  .failed_before = ForgetsFailed(),
                                  .reply = std::move(reply)});
  timers_.Add({deadline, TimerKind::kReclaim, id.value});
}

void EngineImpl::AdvanceRemovals() {
  for (auto at = removals_.begin(); at != removals_.end();) {
    at = AdvanceRemoval(at->second) ? removals_.erase(at) : std::next(at);
  }
}

/// True: answered.
bool EngineImpl::AdvanceRemoval(RemovalOp& op) {
  std::vector<Removal::Row>& rows = op.removal.rows;
  const auto lingers = [this](const Removal::Row& row) {
    return table_.live(row.entry) && table_.at(row.entry).generation == row.generation &&
           OnColdTier(row.entry);
  };
  while (!rows.empty() && !lingers(rows.back())) rows.pop_back();
  if (rows.empty() && !op.forgets) {
    for (Tier& tier : ladder_.tiers()) FlushErases(tier);
    op.forgets.emplace();
    for (const Tier& tier : ladder_.tiers()) (*op.forgets)[tier.id.value] = tier.forgets_ordered;
  }
  const bool done =
      op.forgets && std::all_of(ladder_.tiers().begin(), ladder_.tiers().end(), [&op](const Tier& tier) {
        return tier.forgets_done >= (*op.forgets)[tier.id.value];
      });
  if (!done && now_ < op.deadline) return false;
  timers_.Cancel({op.deadline, TimerKind::kReclaim, op.id.value});
  if (!done) {
    Fail(op.reply, Code::kDeadlineExceeded, "the blocks are gone; their records are not yet marked dead");
  } else if (ForgetsFailed() > op.failed_before) {
    Fail(op.reply, Code::kAborted, "the blocks are gone; a restart may find their records again");
  } else if (op.reply) {
    op.reply(op.removal.blocks);
  }
  return true;
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
    if (valid.ok() && removals_.size() >= kMaxOperations)
      valid = Status(Code::kResourceExhausted, "too many removals wait");
    if (!valid.ok()) {
      if (c.reply) c.reply(std::move(valid));
      return true;
    }
    removing_ = {};
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
    RemoveFor(removing_, id);
  }
  HoldRemoval(std::move(removing_), current_->deadline, std::move(c.reply));
  return true;
}

}  // namespace kvtier
