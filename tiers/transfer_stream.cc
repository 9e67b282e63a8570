#include "tiers/transfer_stream.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tiers/cold_io.h"

namespace kvtier {
namespace {

static_assert(kMaxStreamJobs * kColdParts <= kMaxIoInFlight);

bool Reads(const MoveOrder& order) {
  return !order.staged.has_value() && order.source_medium->device() != nullptr;
}

uint64_t DeviceBytes(const MoveOrder& order) {
  const bool reads = Reads(order);
  uint64_t bytes = reads ? order.source.bytes : order.target.bytes;
  for (const Place& tail : reads ? order.source_tails : order.target_tails) bytes += tail.bytes;
  return bytes;
}

}  // namespace

bool CanStream(const Job& job) {
  const auto* move = std::get_if<MoveJob>(&job.work);
  if (move == nullptr) return false;
  const MoveOrder& order = move->order;
  DeviceMedium* target = order.target_medium->device();
  if (Reads(order)) return target == nullptr;
  if (target == nullptr || !target->ReadyFor(order.target)) return false;
  return std::ranges::all_of(order.target_tails,
                             [&](const Place& tail) { return tail.bytes == 0 || target->ReadyFor(tail); });
}

/// One job on its way, and the buffers that the next one will find.
struct TransferStream::Lane {
  size_t number = 0;
  bool busy = false;
  Job job;
  Completion completion;
  uint64_t bytes = 0;
  size_t under_way = 0;  ///< requests
  std::vector<Medium::PartRead> reads;
  std::array<AlignedBuffer, kColdParts> bounces;  ///< of the reads
  MoveWrites writes;
  std::span<std::byte> lent;  ///< to the buffer of the base

  AlignedBuffer& base() { return Reads(order()) ? bounces[0] : writes.base; }
  const MoveOrder& order() const { return std::get<MoveJob>(job.work).order; }
};

TransferStream::TransferStream(BoundedQueue<Job>& jobs, Workers& workers, Callbacks callbacks)
    : jobs_(jobs),
      workers_(workers),
      callbacks_(std::move(callbacks)),
      memory_io_(MakeBlockIo(BlockIoKind::kSync).value()) {
  ended_.reserve(kMaxStreamJobs);
  for (size_t i = 0; i < kMaxStreamJobs; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->number = i;
  }
}

TransferStream::~TransferStream() = default;

void TransferStream::Trim() {
  for (const auto& lane : lanes_) {
    lane->bounces = {};
    lane->writes = {};
  }
}

std::optional<Job> TransferStream::Run(Job first, BlockIo& io) {
  const TimePoint now = SteadyClock{}.Now();
  closes_ = now + kColdIoTimeout / 2;
  io_ = &io;
  io.RegisterMemory(io_memory_.all());
  Begin(std::move(first));
  io.RunStream(*this, now + kColdIoTimeout);
  jobs_.StopRingingFor(bell_);
  Report();
  KVTIER_CHECK(busy_ == 0 && ready_.empty() && ended_.empty());
  return std::exchange(next_, std::nullopt);
}

/// Of what waits and what is under way: a worker leaves to the others what they can begin at once.
size_t TransferStream::Share() const {
  const size_t all = jobs_.size() + workers_.jobs_under_way.load(std::memory_order_relaxed);
  return std::clamp<size_t>((all + workers_.count - 1) / workers_.count, 1, kMaxStreamJobs);
}

IoRequest* TransferStream::Next() {
  Report();
  while (ready_.empty()) {
    if (Take()) continue;
    Report();  // what ended without any request
    return nullptr;
  }
  IoRequest* request = ready_.front();
  ready_.pop_front();
  return request;
}

/// False: nothing more for now. Where it could take another job but there is none, the queue is told so.
bool TransferStream::Take() {
  if (busy_ == kMaxStreamJobs || (busy_ > 0 && bytes_ >= kMaxStreamBytes)) return false;
  if (next_.has_value() || !io_->usable() || SteadyClock{}.Now() >= closes_) return false;
  if (busy_ > 0 && busy_ >= Share()) {
    // What is there is for the others; what comes may be for this one.
    static_cast<void>(jobs_.RingFor(bell_));
    return false;
  }
  std::optional<Job> job = jobs_.TryPop();
  if (!job.has_value()) return busy_ > 0 && !jobs_.RingFor(bell_);
  if (CanStream(*job)) {
    Begin(*std::move(job));
    return true;
  }
  next_ = std::move(job);
  return false;
}

void TransferStream::Begin(Job job) {
  Lane& lane = FreeLane();
  lane.busy = true;
  lane.job = std::move(job);
  lane.completion = {.id = lane.job.id, .status = {}, .outcome = {}};
  lane.bytes = DeviceBytes(lane.order());
  lane.lent = io_memory_.Take(Reads(lane.order()) ? lane.order().source.bytes : lane.order().target.bytes);
  lane.base().Lend(lane.lent);
  ++busy_;
  workers_.jobs_under_way.fetch_add(1, std::memory_order_relaxed);
  bytes_ += lane.bytes;
  lane.completion.status =
      callbacks_.guard([&] { return Reads(lane.order()) ? StartReads(lane) : StartWrites(lane); });
  if (lane.under_way == 0) End(lane);
}

TransferStream::Lane& TransferStream::FreeLane() {
  const auto lane = std::ranges::find_if(lanes_, [](const auto& l) { return !l->busy; });
  KVTIER_CHECK(lane != lanes_.end());
  return **lane;
}

void TransferStream::Submit(Lane& lane, DeviceRequest& device) {
  if (!device.io.has_value()) return;
  device.io->tag = lane.number;
  ready_.push_back(&*device.io);
  ++lane.under_way;
}

Status TransferStream::StartReads(Lane& lane) {
  DeviceMedium& device = *lane.order().source_medium->device();
  lane.reads = SourceReads(lane.order());
  for (size_t i = 0; i < lane.reads.size(); ++i) {
    lane.reads[i].bounce = &lane.bounces[i];
    device.StartRead(lane.reads[i]);
    Submit(lane, lane.reads[i].device);
  }
  return Status::Ok();
}

Status TransferStream::StartWrites(Lane& lane) {
  const MoveOrder& order = lane.order();
  if (!order.staged.has_value()) {
    lane.reads = SourceReads(order);
    for (size_t i = 0; i < lane.reads.size(); ++i) lane.reads[i].bounce = &lane.bounces[i];
    order.source_medium->ReadParts(lane.reads, *memory_io_);
  }
  const bool alone = busy_ == 1 && jobs_.size() == 0;
  KVTIER_TRY(callbacks_.build(order, lane.reads, lane.writes, lane.completion.outcome, alone));
  for (Medium::PartWrite& write : lane.writes.parts) {
    order.target_medium->device()->StartWrite(write);
    Submit(lane, write.device);
  }
  return Status::Ok();
}

void TransferStream::Done(IoRequest& request) {
  Lane& lane = *lanes_[request.tag];
  KVTIER_CHECK(lane.under_way > 0);
  if (--lane.under_way == 0) End(lane);
}

Status TransferStream::EndReads(Lane& lane) {
  const MoveOrder& order = lane.order();
  for (Medium::PartRead& read : lane.reads) {
    if (read.device.io.has_value()) order.source_medium->device()->EndRead(read);
  }
  const bool alone = busy_ == 1 && jobs_.size() == 0;
  KVTIER_TRY(callbacks_.build(order, lane.reads, lane.writes, lane.completion.outcome, alone));
  order.target_medium->FinishWrites(lane.writes.parts, *memory_io_);
  return EndMove(lane.writes, lane.completion.outcome);
}

Status TransferStream::EndWrites(Lane& lane) {
  for (Medium::PartWrite& write : lane.writes.parts) {
    if (write.device.io.has_value()) lane.order().target_medium->device()->EndWrite(write);
  }
  return EndMove(lane.writes, lane.completion.outcome);
}

void TransferStream::End(Lane& lane) {
  Completion& completion = lane.completion;
  if (completion.status.ok()) {
    completion.status =
        callbacks_.guard([&] { return Reads(lane.order()) ? EndReads(lane) : EndWrites(lane); });
  }
  if (completion.status.code() == Code::kInternal) {
    completion.outcome = {};
    closes_ = {};  // what the worker has may be broken
  }
  lane.base().Lend({});
  io_memory_.Give(std::exchange(lane.lent, {}));
  lane.reads.clear();
  lane.writes.parts.clear();
  for (AlignedBuffer& bounce : lane.bounces) bounce.ShrinkToUse(kRetainedBounceBytes);
  lane.job = {};  // its staged memory is free before anybody hears of it
  lane.busy = false;
  --busy_;
  workers_.jobs_under_way.fetch_sub(1, std::memory_order_relaxed);
  bytes_ -= lane.bytes;
  ended_.push_back(std::move(completion));
  ended_bytes_ += lane.bytes;
  if (ended_bytes_ >= kMaxReportBytes) Report();
}

void TransferStream::Report() {
  if (!ended_.empty()) callbacks_.complete(ended_);
  ended_.clear();
  ended_bytes_ = 0;
}

}  // namespace kvtier
