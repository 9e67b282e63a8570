#include <algorithm>
#include <utility>

#include "codecs/image_layout.h"
#include "daemon/engine/engine_impl.h"
#include "tiers/base/check.h"
#include "tiers/cold_tail.h"

namespace kvtier {
namespace {

/// The smallest codec that keeps at least `precision` of what an engine gives in `dtype`.
const Codec* CodecFor(Precision precision, DType dtype) {
  const Codec* as_given = FindCodec(RawCodecOf(dtype));
  if (precision >= as_given->precision) return as_given;
  switch (precision) {
    case Precision::kNone:
    case Precision::kInt2:
      return FindCodec(CodecId::kKv2p);
    case Precision::kK4V2:
      return FindCodec(CodecId::kKv42);
    case Precision::kInt4:
      return FindCodec(CodecId::kKv4p);
    case Precision::kBits8:
      return FindCodec(CodecId::kKv8);
    case Precision::kBits16:
      break;
  }
  return as_given;
}

/// What went wrong with a device means that it cannot be used now, whatever the system calls it: a file
/// system that turned read-only is no caller's missing permission.
Status ForCallers(const Status& status) {
  const bool as_it_is = status.code() == Code::kResourceExhausted || !IsDeviceFailure(status.code());
  return as_it_is ? status : Status(Code::kUnavailable, status.message());
}

}  // namespace

EngineImpl::Target EngineImpl::TargetFor(const Entry& entry, std::optional<TierId> from, const Tier& to,
                                         Purpose purpose, Precision least, Precision most) const {
  const BlockShape shape = models_.ShapeOf(entry);
  const CodecId source = from ? table_.copy(entry, *from).codec : RawCodecOf(shape.dtype);
  const Codec* codec = FindCodec(source);
  if (KeepsTails(entry, source, to, purpose)) {
    const Codec& base = RungOf(ColdPart::kBase);
    return {&base, PlainImageBytes(base, shape), TailBytesFor(shape, source, to)};
  }
  if (purpose == Purpose::kPromote && table_.copy(entry, *from).in_parts) {
    for (const ColdPart best : {ColdPart::kKTail, ColdPart::kBase}) {
      if (codec->precision > most) codec = &RungOf(best);
    }
  }
  // Durable blocks keep INT4 on disk whatever the tier does with others.
  const Precision wanted =
      purpose == Purpose::kPersist ? Precision::kInt4 : FindCodec(to.options.codec)->precision;
  // A tail is too short-lived for the plane family.
  const bool encodes = purpose != Purpose::kPromote && (!entry.is_tail || wanted == Precision::kBits8);
  if (encodes) {
    const Codec* target = CodecFor(std::max({wanted, least, entry.floor}), shape.dtype);
    if (CanRequantize(source, *target, shape)) codec = target;
  }
  if (from && (codec->id == source || table_.copy(entry, *from).in_parts)) {
    return {codec, ladder_.RungBytes(entry, *from, *codec)};
  }
  return {codec, PlainImageBytes(*codec, shape)};
}

bool EngineImpl::CouldTake(const Tier& to, const Entry& entry, std::optional<TierId> from,
                           Purpose purpose) const {
  if (transfers_.size() >= kMaxTransfers) return false;
  if (from && !ladder_.at(*from).reads.Allows(now_)) return false;
  if (!to.TakesBlocksOf(entry.tenant)) return false;
  const Target target = TargetFor(entry, from, to, purpose, Precision::kNone);
  if (to.has_slots()) {
    return to.circuit.Allows(now_) &&
           to.arenas->CouldFit(ladder_.ClassOf(entry, target.codec->id, target.image_bytes).slot_bytes);
  }
  if (models_.at(entry.model).persisted[to.id.value] == Persisted::kRefused) return false;
  return to.circuit.Allows(now_) && (to.segments->has_segments() || now_ >= to.grow_after) &&
         to.segments->CouldFit(ColdRecordBytes(target.image_bytes));
}

std::optional<TierId> EngineImpl::PersistentTier(std::optional<TenantId> tenant) const {
  for (const Tier& tier : ladder_.tiers()) {
    if (tier.has_slots() || !tier.options.persistent) continue;
    if (!tenant || tier.TakesBlocksOf(*tenant)) return tier.id;
  }
  return std::nullopt;
}

bool EngineImpl::HasColdTier() const {
  return std::any_of(ladder_.tiers().begin(), ladder_.tiers().end(),
                     [](const Tier& tier) { return tier.cold(); });
}

TierId EngineImpl::BestSource(const Entry& entry) const {
  TierId best{};
  for (uint8_t i = 0; i < ladder_.tiers().size(); ++i) {
    const Precision known = entry.precision[best.value], own = entry.precision[i];
    // Of equals the higher, but for a GPU, whose copy would come over the bus.
    const bool nearer = ladder_.at(best).options.kind == MediumKind::kGpu && ladder_.tiers()[i].host();
    if (own > known || (own == known && own != Precision::kNone && nearer)) best = TierId{i};
  }
  KVTIER_CHECK(entry.Has(best.value));
  return best;
}

TransferId EngineImpl::StartTransfer(TransferRequest request) {
  if (transfers_.size() >= kMaxTransfers) return {};
  const TransferId id{next_id_++};
  const Entry& entry = table_.at(request.entry);
  Tier& to = ladder_.at(request.to);
  const Target target = TargetFor(entry, request.from, to, request.purpose, request.least, request.most);
  Transfer& transfer = transfers_[id];
  transfer.id = id;
  transfer.entry = request.entry;
  transfer.purpose = request.purpose;
  transfer.from = request.from;
  transfer.to = request.to;
  transfer.codec = target.codec;
  transfer.image_bytes = target.image_bytes;
  transfer.tail_bytes = target.tail_bytes;
  transfer.deadline = request.deadline;
  transfer.on_demand = request.on_demand;
  transfer.least = request.least;
  transfer.staged = std::move(request.staged);
  if (request.waiter) transfer.waiters.push_back(*request.waiter);
  if (request.from) {
    transfer.source_codec = table_.copy(entry, *request.from).codec;
    ladder_.Pin(request.entry, *request.from, PinKind::kJob);
    Circuit& reads = ladder_.at(*request.from).reads;
    transfer.read_probe = reads.open();
    reads.OnStart();
  } else {
    transfer.source_codec = RawCodecOf(models_.ShapeOf(entry).dtype);
  }
  if (to.cold()) PersistModel(entry.model);
  if (!to.host()) {
    transfer.probe = to.circuit.open();
    to.circuit.OnStart();
  }
  ladder_.BeginWrite(request.entry, request.to, target.codec->id, id);
  timers_.Add({transfer.deadline, TimerKind::kTransfer, id.value});
  SeekSpace(transfer);
  return id;
}

void EngineImpl::JoinTransfer(TransferId id, const Waiter& waiter, TimePoint deadline) {
  Transfer& transfer = transfers_.at(id);
  transfer.waiters.push_back(waiter);
  if (deadline <= transfer.deadline) return;
  timers_.Cancel({transfer.deadline, TimerKind::kTransfer, id.value});
  transfer.deadline = deadline;
  timers_.Add({transfer.deadline, TimerKind::kTransfer, id.value});
}

void EngineImpl::CountInFlight(const Transfer& transfer, int32_t by) {
  if (transfer.overdue) return;
  ladder_.at(transfer.to).moves_in_flight += static_cast<uint32_t>(by);
  if (transfer.from) ladder_.at(*transfer.from).moves_in_flight += static_cast<uint32_t>(by);
}

void EngineImpl::SeekSpace(Transfer& transfer) {
  ++changes_;
  transfer.stage = Transfer::Stage::kSeeking;
  Tier& to = ladder_.at(transfer.to);
  std::deque<TransferId>* waiting = &to.waiting;
  if (to.has_slots()) {
    waiting = &ladder_
                   .QueueOf(to, ladder_.ClassOf(table_.at(transfer.entry), transfer.codec->id,
                                                transfer.image_bytes))
                   .waiting;
  }
  const bool taken = waiting->empty() &&
                     (to.has_slots() ? ladder_.TakePlace(transfer.entry, transfer.to, transfer.image_bytes)
                                     : TakeColdPlaces(to, transfer) == Places::kTaken);
  if (taken) return OrderMove(transfer);
  waiting->push_back(transfer.id);
}

void EngineImpl::OrderMove(Transfer& transfer) {
  ++changes_;
  transfer.stage = Transfer::Stage::kMoving;
  CountInFlight(transfer, 1);
  const Entry& entry = table_.at(transfer.entry);
  Tier& to = ladder_.at(transfer.to);
  if (to.has_slots()) OrderArenaAhead(to, {entry.tenant, table_.copy(entry, transfer.to).place_bytes()});
  MoveOrder order;
  order.identity = models_.IdentityOf(entry);
  order.meta = {.parent = entry.parent, .floor = entry.floor, .is_tail = entry.is_tail};
  order.staged = transfer.staged;
  if (transfer.from) {
    order.source = ladder_.PlaceOf(table_.copy(entry, *transfer.from));
    order.source_medium = ladder_.at(*transfer.from).options.medium;
    if (table_.copy(entry, *transfer.from).in_parts) {
      transfer.source_tails = TailsToRead(transfer);
      order.source_tails = transfer.source_tails;
    }
  }
  order.target = ladder_.PlaceOf(table_.copy(entry, transfer.to));
  order.target_tails = ladder_.TailsOf(transfer.entry, transfer.to);
  order.target_medium = to.options.medium;
  order.codec = transfer.codec;
  order.scales = models_.at(entry.model).scales;
  const PendingJob pending{.kind = PendingJob::Kind::kMove, .transfer = transfer.id};
  if (transfer.SomebodyWaits()) {
    EnqueueUrgent(pending, MoveJob{std::move(order)});
  } else {
    Enqueue(pending, MoveJob{std::move(order)});
  }
}

void EngineImpl::OnMoveDone(TransferId id, Completion completion) {
  Transfer& transfer = transfers_.at(id);
  Status status = completion.status;
  if (status.ok() && ladder_.at(transfer.to).lost) status = Status(Code::kUnavailable, "the GPU was lost");
  if (status.code() == Code::kOutOfRange && completion.outcome.needed_bytes > transfer.image_bytes &&
      !transfer.regrown) {
    transfer.regrown = true;
    transfer.image_bytes = completion.outcome.needed_bytes;
    const Tier& to = ladder_.at(transfer.to);
    const bool fits =
        to.has_slots()
            ? to.arenas->CouldFit(
                  ladder_.ClassOf(table_.at(transfer.entry), transfer.codec->id, transfer.image_bytes)
                      .slot_bytes)
            : to.segments->CouldFit(ColdRecordBytes(transfer.image_bytes));
    if (!fits) return FinishTransfer(id, Status(Code::kResourceExhausted, "the image does not fit the tier"));
    return SeekAnotherPlace(transfer);
  }
  if (MakesDoWithLess(transfer, status)) return SeekAnotherPlace(transfer);
  if (!status.ok()) {
    OnMoveFailed(transfer, status, completion.outcome.source_failed);
    return FinishTransfer(id, ForCallers(status));
  }
  transfer.outcome = completion.outcome;
  if (transfer.from) ladder_.at(*transfer.from).reads.OnSuccess();
  DropBadTails(transfer);
  if (ladder_.at(transfer.to).cold()) {
    NoteFiles(transfer);
    CountWritten(transfer);
  }
  if (ladder_.at(transfer.to).has_slots()) ladder_.at(transfer.to).circuit.OnSuccess();
  const Entry& entry = table_.at(transfer.entry);
  if (ladder_.at(transfer.to).has_slots() || !entry.in_table) return FinishTransfer(id, Status::Ok());
  transfer.stage = Transfer::Stage::kCommitting;
  ColdRecord record = ladder_.RecordOf(entry, transfer.to);
  record.codec = transfer.outcome.codec;
  record.image_bytes = transfer.outcome.image_bytes;
  record.k_error = transfer.outcome.k_error;
  record.v_error = transfer.outcome.v_error;
  record.binding = transfer.outcome.binding;
  CommitJob job{.tier = transfer.to, .item = record};
  job.tails = TailsToCommit(transfer, record);
  EnqueueCold({.kind = PendingJob::Kind::kCommit, .transfer = id}, std::move(job));
}

void EngineImpl::SeekAnotherPlace(Transfer& transfer) {
  CountInFlight(transfer, -1);
  transfer.stage = Transfer::Stage::kSeeking;
  ladder_.ReturnPlace(transfer.entry, transfer.to);
  SeekSpace(transfer);
}

void EngineImpl::OnCommitDone(TransferId id, const Completion& completion) {
  Transfer& transfer = transfers_.at(id);
  Status status = completion.status;
  Tier& to = ladder_.at(transfer.to);
  LoseTailsNotCommitted(transfer, completion);
  if (status.ok()) {
    to.circuit.OnSuccess();
  } else {
    to.circuit.OnFailure(now_);
  }
  const Model& model = models_.at(table_.at(transfer.entry).model);
  if (status.ok() && model.persisted[to.id.value] != Persisted::kYes) {
    // A restart would not know whose block this is. The device has proved to be well.
    status = Status(Code::kUnavailable, "the record of the block's model could not be written");
  }
  if (!status.ok()) {
    to.metrics->write_errors.Add();
    to.segments->Seal(ladder_.PlaceOf(table_.copy(transfer.entry, to.id)));
  }
  FinishTransfer(id, ForCallers(status));
}

void EngineImpl::OnMoveFailed(Transfer& transfer, const Status& status, bool source_failed) {
  Tier& to = ladder_.at(transfer.to);
  switch (status.code()) {
    case Code::kDataLoss:
      if (!transfer.from) return;
      ladder_.at(*transfer.from).reads.OnSuccess();  // the device answers
      ladder_.at(*transfer.from).metrics->checksum_failures.Add();
      return Quarantine(transfer.entry, *transfer.from);
    case Code::kUnimplemented:
      metrics_.unsupported_images.Add();
      return;
    default:
      break;
  }
  const bool device = IsDeviceFailure(status.code());
  if (transfer.from && !ladder_.at(*transfer.from).host() && (source_failed || to.host())) {
    ladder_.at(*transfer.from).metrics->read_errors.Add();
    if (device) ladder_.at(*transfer.from).reads.OnFailure(now_);
    return;
  }
  to.metrics->write_errors.Add();
  if (device && !to.host()) to.circuit.OnFailure(now_);
}

void EngineImpl::AbortSeeking(TransferId id, Code code) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end() || found->second.stage != Transfer::Stage::kSeeking) return;
  const Transfer& transfer = found->second;
  Tier& to = ladder_.at(transfer.to);
  std::deque<TransferId>& waiting =
      to.has_slots() ? ladder_
                           .QueueOf(to, ladder_.ClassOf(table_.at(transfer.entry), transfer.codec->id,
                                                        transfer.image_bytes))
                           .waiting
                     : to.waiting;
  std::erase(waiting, id);
  FinishTransfer(id, Status(code, "no space was found for the block"));
}

void EngineImpl::FinishTransfer(TransferId id, Status status) {
  ++changes_;
  const auto node = transfers_.extract(id);
  KVTIER_CHECK(!node.empty());
  const Transfer& transfer = node.mapped();
  timers_.Cancel({transfer.deadline, TimerKind::kTransfer, id.value});
  if (transfer.stage != Transfer::Stage::kSeeking) CountInFlight(transfer, -1);
  if (status.ok() && !table_.at(transfer.entry).in_table)
    status = Status(Code::kAborted, "the block was removed");
  if (status.ok()) {
    ladder_.Publish(transfer.entry, transfer.to, transfer.outcome, Tenths());
  } else {
    ladder_.AbandonWrite(transfer.entry, transfer.to);
    // A probe that never reached the device has proved nothing.
    if (transfer.probe) ladder_.at(transfer.to).circuit.OnAbandon();
    if (transfer.read_probe) ladder_.at(*transfer.from).reads.OnAbandon();
  }
  if (transfer.from) ladder_.Unpin(transfer.entry, *transfer.from, PinKind::kJob);
  CountMove(transfer, status);
  if (transfer.purpose == Purpose::kDemote) FinishDemotion(transfer, status);
  for (const Waiter& waiter : transfer.waiters) Notify(waiter, transfer, status);
  ForgetIfGone(transfer.entry);
}

void EngineImpl::CountMove(const Transfer& transfer, const Status& status) {
  const size_t from = transfer.from ? transfer.from->value : kMaxTiers;
  Metrics::Move& move = metrics_.moves[from][transfer.to.value];
  if (status.ok()) {
    move.blocks.Add();
    move.bytes.Add(transfer.outcome.image_bytes);
    for (const TailOutcome& tail : transfer.outcome.tails) move.bytes.Add(tail.bytes);
    if (transfer.outcome.codec != transfer.source_codec) move.requantized.Add();
  } else if (transfer.stage != Transfer::Stage::kSeeking && status.code() != Code::kAborted) {
    move.failed.Add();
  }
}

void EngineImpl::Notify(const Waiter& waiter, const Transfer& transfer, const Status& status) {
  switch (waiter.kind) {
    case Waiter::Kind::kPut:
      return OnPutTransfer(waiter, transfer, status);
    case Waiter::Kind::kAcquire:
    case Waiter::Kind::kAcquireTail:
      return OnAcquireTransfer(waiter, transfer, status);
    case Waiter::Kind::kPrefetch:
      return OnPrefetchTransfer(waiter, status);
    case Waiter::Kind::kDurable:
      return SettleDurable(waiter.op, waiter.index, status.code());
    case Waiter::Kind::kSweep:
      return OnSweepTransfer(waiter, status);
    case Waiter::Kind::kPutJoin:
      break;  // joins a put, never a transfer
  }
  KVTIER_CHECK(false);
}

}  // namespace kvtier
