#include "tiers/committer.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <tuple>

#include "tiers/completion_queue.h"

namespace kvtier {

namespace {

/// How long it waits for a job before it shows that it is alive.
constexpr Duration kPopSlice = std::chrono::milliseconds(100);
/// Between two groups of commits, for each job but one of the former: a sync disturbs all that is on its way
/// to the device, and where many come the next group grows by waiting. Who puts one after another never
/// waits.
constexpr Duration kCommitPauseOfOne = std::chrono::microseconds(50);
constexpr Duration kMaxCommitPause = std::chrono::milliseconds(3);

TimePoint Now() {
  return SteadyClock{}.Now();
}

}  // namespace

Committer::Committer(CommitterOptions options, std::vector<CommitterStore> stores,
                     BoundedQueue<ColdJob>& jobs, BoundedQueue<Completion>& completions, Metrics& metrics)
    : options_(std::move(options)),
      stores_(std::move(stores)),
      jobs_(jobs),
      completions_(completions),
      metrics_(metrics) {}

Committer::~Committer() {
  Stop();
}

Status Committer::Start() {
  KVTIER_CHECK(!thread_.joinable());
  stopping_ = false;
  last_progress_ = Now();
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, std::string("no thread for the committer: ") + error.what());
  }
  return Status::Ok();
}

void Committer::Stop() {
  stopping_ = true;
  jobs_.Wake();
  if (thread_.joinable()) thread_.join();
}

void Committer::Run() {
  std::optional<ColdJob> next;
  while (true) {
    if (!next.has_value()) next = jobs_.PopUntil(Now() + kPopSlice);
    last_progress_ = Now();
    if (!next.has_value()) {
      if (stopping_) break;
      continue;
    }
    ColdJob job = *std::exchange(next, std::nullopt);
    if (std::holds_alternative<CommitJob>(job.work)) {
      std::vector<ColdJob> group = Gather(std::move(job), next);
      last_group_ = static_cast<uint32_t>(group.size());
      CommitAll(std::move(group));
      last_commit_ = Now();
    } else {
      ExecuteOne(job);
    }
    CountMetadata();
  }
  io_.reset();
}

/// The commits that are queued behind `first`, up to the next job of another kind: jobs are done in the order
/// given.
std::vector<ColdJob> Committer::Gather(ColdJob first, std::optional<ColdJob>& next) {
  std::vector<ColdJob> batch;
  batch.push_back(std::move(first));
  if (jobs_.size() + 1 < kMaxCommitBatch && last_group_ > 1) {
    std::this_thread::sleep_until(last_commit_ +
                                  std::min(kMaxCommitPause, (last_group_ - 1) * kCommitPauseOfOne));
  }
  while (batch.size() < kMaxCommitBatch) {
    std::optional<ColdJob> job = jobs_.TryPop();
    if (!job.has_value()) break;
    if (!std::holds_alternative<CommitJob>(job->work)) {
      next = std::move(job);
      break;
    }
    batch.push_back(*std::move(job));
  }
  return batch;
}

/// One record of a batch.
struct Committer::Unit {
  const CommitJob* job = nullptr;
  size_t index = 0;  ///< of the job in the batch
  const ColdCommit* item = nullptr;
  Status status;

  /// Tails before bases, so that whoever is told of a block has been told all.
  auto Order() const {
    const Place& place = item->place;
    return std::make_tuple(place.part == ColdPart::kBase, job->tier, place.container, place.epoch);
  }
};

/// Segment by segment: one sync and one index batch each.
void Committer::CommitAll(std::vector<ColdJob> batch) {
  std::vector<Unit> units;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto& job = std::get<CommitJob>(batch[i].work);
    for (const ColdCommit& tail : job.tails) units.push_back({&job, i, &tail, {}});
    units.push_back({&job, i, &job.item, {}});
  }
  std::ranges::stable_sort(units, {}, &Unit::Order);
  std::vector<MoveOutcome> outcomes(batch.size());
  for (auto begin = units.begin(); begin != units.end();) {
    const auto end =
        std::find_if(begin, units.end(), [&](const Unit& unit) { return unit.Order() != begin->Order(); });
    CommitSegment({begin, end});
    std::vector<Completion> done;
    for (; begin != end; ++begin) {
      const ColdPart part = begin->item->place.part;
      if (part == ColdPart::kBase) {
        done.push_back({batch[begin->index].id, begin->status, outcomes[begin->index]});
      } else {
        outcomes[begin->index].tails[TailIndex(part)].code = begin->status.code();
      }
    }
    Complete(done);
  }
}

void Committer::CommitSegment(std::span<Unit> units) {
  const Status status = Supervised([&](BlockIo& io) -> Status {
    KVTIER_ASSIGN(ColdStore * store, Find(units[0].job->tier));
    std::vector<ColdCommit> items;
    for (const Unit& unit : units) items.push_back(*unit.item);
    return store->Commit(items, io);
  });
  for (Unit& unit : units) unit.status = status;
}

void Committer::ExecuteOne(const ColdJob& job) {
  Completion done{job.id, Supervised([&](BlockIo& io) { return Perform(job, io); }), {}};
  Complete({&done, 1});
}

Status Committer::Perform(const ColdJob& job, BlockIo& io) {
  if (const auto* erase = std::get_if<EraseJob>(&job.work)) {
    KVTIER_ASSIGN(ColdStore * store, Find(erase->tier));
    return store->Erase(erase->items, io);
  }
  if (const auto* recycle = std::get_if<RecycleJob>(&job.work)) {
    KVTIER_ASSIGN(ColdStore * store, Find(recycle->tier));
    return store->RecycleSegment(recycle->segment, recycle->new_sequence, io);
  }
  const auto& put = std::get<PutModelJob>(job.work);
  KVTIER_ASSIGN(ColdStore * store, Find(put.tier));
  return store->PutModel(put.model);
}

Status Committer::Supervised(const std::function<Status(BlockIo&)>& work) {
  std::string what = "exception";
  try {
    if (io_ == nullptr) {
      KVTIER_ASSIGN(io_, MakeBlockIo(options_.io));
    }
    return work(*io_);
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  io_.reset();
  metrics_.worker_restarts.Add();
  return Status(Code::kInternal, "committer: " + what);
}

Result<ColdStore*> Committer::Find(TierId tier) const {
  for (const CommitterStore& store : stores_) {
    if (store.tier == tier) return store.store;
  }
  return Status(Code::kInvalidArgument, "tier " + std::to_string(tier.value) + " is not a cold one");
}

void Committer::CountMetadata() {
  for (const CommitterStore& one : stores_) {
    Counter& counter = metrics_.tier[one.tier.value].written_for_metadata;
    const uint64_t written = one.store->metadata_bytes_written();
    if (written > counter.Get()) counter.Add(written - counter.Get());
  }
}

void Committer::Complete(std::span<Completion> completions) {
  kvtier::Complete(completions, completions_, options_.on_completion, last_progress_);
}

}  // namespace kvtier
