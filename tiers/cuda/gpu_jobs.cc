#include "tiers/cuda/gpu_jobs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvtier {
namespace {

/// Calls with all parts of the lists in one, and gives them back.
template <typename Parts, typename Call>
void Together(std::span<Parts*> lists, const Call& call) {
  Parts all;
  for (Parts* list : lists) std::ranges::move(*list, std::back_inserter(all));
  call(all);
  auto next = all.begin();
  for (Parts* list : lists) {
    const auto end = next + static_cast<ptrdiff_t>(list->size());
    std::move(next, end, list->begin());
    next = end;
  }
}

}  // namespace

GpuJobs::GpuJobs(CudaDevice& device, GpuArenas& arenas, Guard guard)
    : device_(device),
      arenas_(arenas),
      guard_(std::move(guard)),
      memory_io_(MakeBlockIo(BlockIoKind::kSync).value()) {
  scratch_.io = memory_io_.get();
}

uint64_t GpuJobs::Bytes(const Job& job) {
  const auto* move = std::get_if<MoveJob>(&job.work);
  return move == nullptr ? 0 : std::max(move->order.source.bytes, move->order.target.bytes);
}

void GpuJobs::Trim() {
  scratch_.Trim();
  for (AlignedBuffer& bounce : bounces_) bounce.ShrinkTo(0);
  for (MoveWrites& writes : writes_) writes.ShrinkTo(0);
}

void GpuJobs::Run(std::vector<Job>& jobs, std::vector<Completion>& ended, LayerCrew* crew) {
  KVTIER_CHECK(jobs.size() <= kMaxGpuJobs);
  std::vector<Lane> lanes(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    Lane& lane = lanes[i];
    lane.completion.id = jobs[i].id;
    lane.writes = std::move(writes_[i]);
    if (const auto* move = std::get_if<MoveJob>(&jobs[i].work)) {
      lane.order = &move->order;
    } else {
      lane.completion.status = guard_([&] { return Other(jobs[i], lane.completion.outcome); });
    }
  }
  Read(lanes);
  for (Lane& lane : lanes) Build(lane, jobs.size() == 1 ? crew : nullptr);
  Write(lanes);
  const bool lost = !device_.Usable().ok();
  for (size_t i = 0; i < jobs.size(); ++i) {
    lanes[i].completion.device_lost = lost && !lanes[i].completion.status.ok();
    ended.push_back(std::move(lanes[i].completion));
    writes_[i] = std::move(lanes[i].writes);
  }
  jobs.clear();
}

/// Those of this GPU together, so that one launch encodes them.
void GpuJobs::Read(std::span<Lane> lanes) {
  std::vector<std::vector<Medium::PartRead>*> own;
  for (size_t i = 0; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    if (lane.order == nullptr || lane.order->staged.has_value()) continue;
    lane.reads = SourceReads(*lane.order);
    KVTIER_CHECK(lane.reads.size() == 1);  // tails stand on cold tiers, whose threads do those jobs
    lane.reads[0].bounce = &bounces_[i];
    if (lane.order->source_medium == &arenas_) {
      own.push_back(&lane.reads);
    } else {
      lane.completion.status = guard_([&] {
        lane.order->source_medium->ReadParts(lane.reads, *memory_io_);
        return Status::Ok();
      });
    }
  }
  if (own.empty()) return;
  const Status read = guard_([&] {
    Together(std::span(own), [&](auto& all) { arenas_.ReadParts(all, *memory_io_); });
    return Status::Ok();
  });
  if (read.ok()) return;
  for (Lane& lane : lanes) {
    if (lane.order != nullptr) lane.completion.status = read;
  }
}

void GpuJobs::Build(Lane& lane, LayerCrew* crew) {
  if (lane.order == nullptr || !lane.completion.status.ok()) return;
  lane.completion.status = guard_([&] {
    scratch_.crew = crew;
    return BuildMove(*lane.order, lane.reads, scratch_, lane.writes, lane.completion.outcome);
  });
  if (lane.completion.status.code() == Code::kInternal) lane.writes.parts.clear();
}

/// Those to this GPU together.
void GpuJobs::Write(std::span<Lane> lanes) {
  std::vector<std::vector<Medium::PartWrite>*> own;
  const auto writes = [](const Lane& lane) { return lane.order != nullptr && lane.completion.status.ok(); };
  for (Lane& lane : lanes) {
    if (!writes(lane)) continue;
    if (lane.order->target_medium == &arenas_) {
      own.push_back(&lane.writes.parts);
    } else {
      const Status finished = guard_([&] {
        lane.order->target_medium->FinishWrites(lane.writes.parts, *memory_io_);
        return Status::Ok();
      });
      if (!finished.ok()) lane.completion = {.id = lane.completion.id, .status = finished, .outcome = {}};
    }
  }
  const Status written = guard_([&] {
    if (!own.empty()) Together(std::span(own), [&](auto& all) { arenas_.FinishWrites(all, *memory_io_); });
    return Status::Ok();
  });
  for (Lane& lane : lanes) {
    if (!writes(lane)) continue;
    lane.completion.status = written.ok() ? EndMove(lane.writes, lane.completion.outcome) : written;
    if (!written.ok()) lane.completion.outcome = {};
  }
}

Status GpuJobs::Other(const Job& job, MoveOutcome& outcome) {
  if (const auto* create = std::get_if<CreateArenaJob>(&job.work)) return arenas_.Create(create->spec);
  if (const auto* destroy = std::get_if<DestroyArenaJob>(&job.work)) {
    arenas_.Destroy(destroy->id);
    return Status::Ok();
  }
  const auto& verify = std::get<VerifyJob>(job.work);
  return VerifyBlock(verify.identity, verify.place, verify.tails, *verify.medium, scratch_, outcome);
}

}  // namespace kvtier
