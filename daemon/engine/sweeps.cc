#include <algorithm>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

constexpr size_t kMaxSweeps = 64;
/// Blocks that one step evicts or demotes for a sweep.
constexpr int kSweepBlocksPerStep = 256;
/// Copies under check at once because clients found them damaged: they cannot make the daemon read more.
constexpr uint32_t kMaxDamagedInFlight = 16;
/// For whom those are checked; no sweep.
constexpr OpId kDamagedOp{UINT64_MAX};

}  // namespace

SweepOp* EngineImpl::StartSweep(SweepOp::Kind kind) {
  if (sweeps_.size() >= kMaxSweeps) return nullptr;
  const OpId id{next_id_++};
  SweepOp& op = sweeps_[id];
  op.id = id;
  op.kind = kind;
  op.deadline = current_->deadline;
  if (kind == SweepOp::Kind::kClear) op.clear = clears_++;
  op.row_limit = table_.row_limit();
  return &op;
}

bool EngineImpl::AdvanceSweeps() {
  bool more = false;
  for (auto at = sweeps_.begin(); at != sweeps_.end();) {
    SweepOp& op = at->second;
    const OpId id = op.id;
    ++at;  // the sweep may end
    if (op.deadline <= now_) {
      FinishSweep(op, Code::kDeadlineExceeded);
      continue;
    }
    const bool by_order = op.kind == SweepOp::Kind::kDemote || op.kind == SweepOp::Kind::kEvict;
    const bool exhausted = by_order ? SweepOrder(op) : SweepRows(op);
    if (exhausted && op.in_flight == 0) {
      FinishSweep(op, Code::kOk);
    } else if (!exhausted && op.in_flight < kSweepJobs) {
      more = true;
    } else {
      timers_.Add({op.deadline, TimerKind::kReclaim, id.value});
    }
  }
  return more;
}

bool EngineImpl::SweepRows(SweepOp& op) {
  for (uint32_t rows = 0; rows < kSweepRowsPerStep; ++rows) {
    if (op.next_row >= op.row_limit) return true;
    if (op.in_flight >= kSweepJobs) return false;
    const EntryId id{op.next_row++};
    if (table_.live(id) && table_.at(id).in_table) SweepRow(op, id);
  }
  return op.next_row >= op.row_limit;
}

void EngineImpl::SweepRow(SweepOp& op, EntryId id) {
  const Entry& entry = table_.at(id);
  switch (op.kind) {
    case SweepOp::Kind::kClear:
      // What came after the request is not meant by it.
      if (entry.model != op.model || entry.born > op.clear) return;
      return RemoveFor(op.removal, id);
    case SweepOp::Kind::kListBlocks:
      if (entry.model != op.model || !entry.Stored() || !(op.after < entry.key)) return;
      op.found.push_back(entry.key);
      std::push_heap(op.found.begin(), op.found.end());
      if (op.found.size() <= op.limit) return;
      std::pop_heap(op.found.begin(), op.found.end());  // the largest key is for a later page
      op.found.pop_back();
      return;
    case SweepOp::Kind::kVerify:
      if (!entry.Has(op.tier.value)) return;
      ++op.in_flight;
      return VerifyCopy(op.tier, id, op.id);
    case SweepOp::Kind::kDrain: {
      const std::optional<TierId> to = PersistentTier(entry.tenant);
      if (!to || !entry.Stored() || table_.copy(entry, *to).state != CopyState::kAbsent) return;
      const TierId source = BestSource(entry);
      if (!CouldTake(ladder_.at(*to), entry, source, Purpose::kPersist)) return;
      StartTransfer({.entry = id,
                     .purpose = Purpose::kPersist,
                     .from = source,
                     .to = *to,
                     .deadline = now_ + kBackgroundDeadline,
                     .staged = std::nullopt,
                     .waiter = Waiter{Waiter::Kind::kSweep, op.id}});
      ++op.in_flight;
      return;
    }
    case SweepOp::Kind::kDemote:
    case SweepOp::Kind::kEvict:
      return;  // by order, not by row
  }
}

bool EngineImpl::SweepOrder(SweepOp& op) {
  for (int blocks = 0; blocks < kSweepBlocksPerStep; ++blocks) {
    if (op.wanted == 0) return true;
    if (op.in_flight >= kSweepJobs) return false;
    const std::optional<EntryId> victim = LeastUsed(ladder_.at(op.tier));
    if (!victim) {
      op.wanted = 0;
      return true;
    }
    if (op.kind == SweepOp::Kind::kEvict) {
      EvictCopy(*victim, op.tier, Reason::kCapacity);
      ++op.done;
      --op.wanted;
      continue;
    }
    const Room room = MoveAway(*victim, op.tier, op.tier.value + 1u, /*on_demand=*/false,
                               Waiter{Waiter::Kind::kSweep, op.id});
    if (room == Room::kBusy) return false;
    if (room == Room::kNone) {
      op.wanted = 0;
      return true;
    }
    --op.wanted;
    if (room == Room::kComing) ++op.in_flight;
    if (room == Room::kFreed) ++op.done;
  }
  return op.wanted == 0;
}

void EngineImpl::OnSweepTransfer(const Waiter& waiter, const Status& status) {
  const auto found = sweeps_.find(waiter.op);
  if (found == sweeps_.end()) return;
  KVTIER_CHECK(found->second.in_flight > 0);
  --found->second.in_flight;
  if (status.ok()) ++found->second.done;
}

void EngineImpl::VerifyCopy(TierId tier, EntryId id, OpId op) {
  ladder_.Pin(id, tier, PinKind::kJob);
  ++ladder_.at(tier).moves_in_flight;
  const Entry& entry = table_.at(id);
  const Copy& copy = table_.copy(entry, tier);
  const TailPlaces tails = ladder_.TailsOf(id, tier);
  Enqueue({.kind = PendingJob::Kind::kVerify,
           .tier = tier,
           .op = op,
           .entry = id,
           .bytes = copy.image_bytes + ladder_.TailBytesOf(id, ladder_.at(tier)),
           .key = entry.key,
           .tails = tails},
          VerifyJob{.identity = models_.IdentityOf(entry),
                    .place = ladder_.PlaceOf(copy),
                    .tails = tails,
                    .medium = ladder_.at(tier).options.medium});
}

void EngineImpl::VerifyDamaged(const Lease& lease, const std::vector<Key>& damaged) {
  for (size_t i = 0; i < std::min<size_t>(damaged.size(), kMaxDamagedInFlight); ++i) {
    for (const Lease::Pinned& pin : lease.pins) {
      if (damaged_in_flight_ == kMaxDamagedInFlight) return;
      const Entry& entry = table_.at(pin.entry);
      if (entry.key != damaged[i] || !entry.Has(pin.tier.value)) continue;
      ++damaged_in_flight_;
      VerifyCopy(pin.tier, pin.entry, kDamagedOp);
    }
  }
}

void EngineImpl::OnVerifyDone(const PendingJob& job, const Completion& completion) {
  bool corrupt = completion.status.code() == Code::kDataLoss;
  if (corrupt) {
    ladder_.at(job.tier).metrics->checksum_failures.Add();
    Quarantine(job.entry, job.tier);
  } else if (completion.status.code() == Code::kUnimplemented) {
    metrics_.unsupported_images.Add();
  } else if (!completion.status.ok()) {
    ladder_.at(job.tier).metrics->read_errors.Add();
  } else {
    for (size_t i = 0; i < job.tails.size(); ++i) {
      corrupt |= DropBadTail(job.entry, job.tier, job.tails[i], completion.outcome.source_tails[i]);
    }
  }
  ladder_.Unpin(job.entry, job.tier, PinKind::kJob);
  --ladder_.at(job.tier).moves_in_flight;
  ForgetIfGone(job.entry);
  ++changes_;
  if (job.op == OpId{}) {
    if (corrupt) ladder_.at(job.tier).metrics->scrub_corrupt.Add();
    return OnScrubbed(job);
  }
  if (job.op == kDamagedOp) {
    --damaged_in_flight_;
    return;
  }
  const auto found = sweeps_.find(job.op);
  if (found == sweeps_.end()) return;
  SweepOp& op = found->second;
  --op.in_flight;
  ++op.done;
  if (!corrupt) return;
  ++op.corrupt;
  if (op.corrupt_keys.size() < kMaxCorruptKeys) op.corrupt_keys.push_back(job.key);
}

void EngineImpl::FinishSweep(SweepOp& op, Code code) {
  const auto node = sweeps_.extract(op.id);
  SweepOp& ended = node.mapped();
  if (code != Code::kOk) {
    std::visit([code](auto& reply) { Fail(reply, code, "the operation was not done by its deadline"); },
               ended.reply);
    return;
  }
  if (ended.kind == SweepOp::Kind::kClear) {
    HoldRemoval(std::move(ended.removal), ended.deadline, std::get<Reply<uint64_t>>(std::move(ended.reply)));
  } else if (auto* count = std::get_if<Reply<uint64_t>>(&ended.reply)) {
    if (*count) (*count)(ended.done);
  } else if (auto* verified = std::get_if<Reply<VerifyReply>>(&ended.reply)) {
    if (*verified)
      (*verified)(VerifyReply{
          .checked = ended.done, .corrupt = ended.corrupt, .corrupt_keys = std::move(ended.corrupt_keys)});
  } else if (auto* listed = std::get_if<Reply<std::vector<BlockStats>>>(&ended.reply)) {
    std::sort(ended.found.begin(), ended.found.end());
    std::vector<BlockStats> blocks;
    for (const Key& key : ended.found) {
      const EntryId id = table_.Find(models_.at(ended.model).tenant, key);
      if (id != kNoEntry && table_.at(id).Stored()) blocks.push_back(DescribeBlock(id));
    }
    if (*listed) (*listed)(std::move(blocks));
  }
}

}  // namespace kvtier
