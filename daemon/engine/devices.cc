#include <algorithm>
#include <utility>

#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

bool IsForWorkers(PendingJob::Kind kind) {
  switch (kind) {
    case PendingJob::Kind::kMove:
    case PendingJob::Kind::kVerify:
    case PendingJob::Kind::kRewrite:
    case PendingJob::Kind::kCreateArena:
    case PendingJob::Kind::kDestroyArena:
      return true;
    case PendingJob::Kind::kCommit:
    case PendingJob::Kind::kErase:
    case PendingJob::Kind::kRecycle:
    case PendingJob::Kind::kRewriteCommit:
    case PendingJob::Kind::kPutModel:
      break;
  }
  return false;
}

}  // namespace

/// Every job that may wait for a device is done by the threads of that device. Between two of them, the lower
/// one: it is the slower.
std::optional<TierId> EngineImpl::DeviceOf(const PendingJob& pending) const {
  std::optional<TierId> device;
  const auto consider = [&](TierId tier) {
    if (!ladder_.at(tier).host()) device = device ? std::max(*device, tier) : tier;
  };
  if (pending.transfer != TransferId{}) {
    const Transfer& transfer = transfers_.at(pending.transfer);
    consider(transfer.to);
    if (transfer.from) consider(*transfer.from);
  } else {
    consider(pending.tier);
  }
  return device;
}

void EngineImpl::NoteAnswer(const PendingJob& pending, JobId id) {
  if (!pending.device) return host_jobs_.OnEnd(id, now_);
  Tier& tier = ladder_.at(*pending.device);
  if (IsForWorkers(pending.kind)) {
    tier.moves.OnEnd(id, now_);
    tier.reads.OnAnswer(now_);
  } else {
    tier.commits.OnEnd(id, now_);
  }
  if (!tier.moves.silent() && !tier.commits.silent()) tier.circuit.OnAnswer(now_);
}

void EngineImpl::WatchDevices() {
  for (Tier& tier : ladder_.tiers()) {
    if (!tier.host()) WatchDevice(tier);
  }
}

void EngineImpl::WatchDevice(Tier& tier) {
  const TimePoint before = now_ - kDevicePatience;
  tier.moves.VisitOverdue(before, [this](JobId id) { OnOverdue(id); });
  tier.commits.VisitOverdue(before, [this](JobId id) { OnOverdue(id); });
  const bool no_moves = tier.moves.FallsSilent(before), no_commits = tier.commits.FallsSilent(before);
  if (no_moves) tier.reads.OnSilence();
  if (!no_moves && !no_commits) return;
  tier.circuit.OnSilence();
  Shed(tier);
}

void EngineImpl::OnOverdue(JobId id) {
  const PendingJob& job = jobs_.at(id);
  if (job.kind != PendingJob::Kind::kMove && job.kind != PendingJob::Kind::kCommit) return;
  Transfer& transfer = transfers_.at(job.transfer);
  if (transfer.overdue) return;
  // Its slot is not waited for any longer: who needs one evicts.
  ++changes_;
  CountInFlight(transfer, -1);
  if (transfer.purpose == Purpose::kDemote) StopCountingDemotion(transfer);
  transfer.overdue = true;
}

/// What the device's threads do not have yet ends now; what they have ends when the device answers.
void EngineImpl::Shed(Tier& tier) {
  std::vector<JobId> ending;
  if (tier.moves.silent()) {
    tier.moves.TakeBack([&ending](const Job& job) {
      if (!std::holds_alternative<MoveJob>(job.work)) return false;
      ending.push_back(job.id);
      return true;
    });
  }
  if (tier.commits.silent()) {
    tier.commits.TakeBack([&ending](const ColdJob& job) {
      if (!std::holds_alternative<CommitJob>(job.work)) return false;
      ending.push_back(job.id);
      return true;
    });
  }
  FailAllWaiting(tier);
  for (const JobId id : ending) {
    const PendingJob job = jobs_.at(id);
    jobs_.erase(id);
    if (job.transfer == TransferId{}) {
      EndRewrite(job.op);
    } else {
      FinishTransfer(job.transfer, Status(Code::kUnavailable, "the device does not answer"));
    }
  }
}

void EngineImpl::FailAllWaiting(Tier& tier) {
  FailWaiting(tier.waiting);
  for (auto& [slot_class, queue] : tier.classes) FailWaiting(queue.waiting);
}

/// What it held are misses from now on; its blocks leave the table bit by bit.
void EngineImpl::OnDeviceLost(Tier& tier) {
  KVTIER_CHECK(tier.options.kind == MediumKind::kGpu);
  if (std::exchange(tier.lost, true)) return;
  ++changes_;
  tier.lost_rows = table_.row_limit();
  tier.circuit.Break();
  tier.reads.Break();
  FailAllWaiting(tier);
}

/// True: more to do.
bool EngineImpl::AdvanceLosses() {
  bool more = false;
  for (Tier& tier : ladder_.tiers()) {
    const uint32_t end = std::min(tier.lost_row + kSweepRowsPerStep, tier.lost_rows);
    for (; tier.lost_row < end; ++tier.lost_row) {
      const EntryId id{tier.lost_row};
      if (table_.live(id) && table_.at(id).Has(tier.id.value)) EvictCopy(id, tier.id, Reason::kCorrupt);
    }
    more |= tier.lost_row < tier.lost_rows;
  }
  return more;
}

TimePoint EngineImpl::NextDeviceLook() const {
  TimePoint next = kNever;
  for (const Tier& tier : ladder_.tiers()) {
    if (tier.host()) continue;
    next = std::min({next, tier.moves.NextLook(kDevicePatience), tier.commits.NextLook(kDevicePatience)});
  }
  return next;
}

/// Whether the disk had no room for a new segment, and the block is to go to one that the tier has.
bool EngineImpl::MakesDoWithLess(Transfer& transfer, const Status& status) {
  Tier& to = ladder_.at(transfer.to);
  if (status.code() != Code::kResourceExhausted || to.has_slots() || transfer.moved_over) return false;
  if (!to.segments->NoSpaceFor(ladder_.PlaceOf(table_.copy(transfer.entry, to.id)))) return false;
  to.metrics->write_errors.Add();
  to.grow_after = now_ + kGrowPause;
  transfer.moved_over = true;
  return true;
}

/// What a write tells of the segments that it went to.
void EngineImpl::NoteFiles(const Transfer& transfer) {
  Tier& to = ladder_.at(transfer.to);
  to.segments->Made(ladder_.PlaceOf(table_.copy(transfer.entry, to.id)));
  for (const ColdPart part : kColdTails) {
    const TailOutcome& tail = transfer.outcome.tails[TailIndex(part)];
    const Place place = ladder_.TailPlace(transfer.entry, to.id, part);
    if (place.bytes == 0) continue;
    if (tail.bytes > 0) to.segments->Made(place);
    if (tail.code == Code::kResourceExhausted && to.segments->NoSpaceFor(place))
      to.grow_after = now_ + kGrowPause;
  }
}

}  // namespace kvtier
