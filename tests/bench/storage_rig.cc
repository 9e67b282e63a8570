#include "tests/bench/storage_rig.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

namespace kvtier::bench {
namespace {

constexpr TierId kCold{1};
constexpr uint64_t kSegmentBytes = uint64_t{64} << 20;
/// More than a job may take on any device that is worth a measurement.
constexpr Duration kPatience = std::chrono::seconds(60);
constexpr size_t kQueue = 1024;
constexpr uint32_t kSeed = 7;

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// `block_bytes` of K and V in the shape of a common model's layers; 0: a block of one token in one small
/// layer.
BlockShape ShapeOfBytes(uint64_t block_bytes) {
  constexpr uint64_t kUnit = uint64_t{64} << 10;  // 16 tokens of one layer
  if (block_bytes == 0) return {.layers = 1, .kv_heads = 1, .k_dim = 64, .v_dim = 64, .tokens = 1};
  KVTIER_CHECK(block_bytes % kUnit == 0);
  const uint64_t units = block_bytes / kUnit;
  const uint64_t tiles = units % 8 == 0 ? 8 : 1;
  return {.layers = static_cast<uint16_t>(units / tiles),
          .kv_heads = 8,
          .k_dim = 128,
          .v_dim = 128,
          .tokens = static_cast<uint16_t>(16 * tiles)};
}

NamespaceDigest BenchNamespace() {
  NamespaceDigest name_space;
  name_space.bytes.fill(std::byte{0x5A});
  return name_space;
}

}  // namespace

StorageRig::StorageRig(const Options& options)
    : options_(options),
      workers_count_(options.workers != 0 ? options.workers
                                          : std::min(std::max(std::thread::hardware_concurrency(), 1u), 4u)),
      shape_(ShapeOfBytes(options.block_bytes)),
      jobs_(kQueue),
      cold_jobs_(kQueue),
      completions_(kQueue) {}

StorageRig::~StorageRig() {
  if (transfer_workers_) transfer_workers_->Stop();
  if (committer_) committer_->Stop();
}

Result<std::unique_ptr<StorageRig>> StorageRig::Make(const Options& options) {
  std::unique_ptr<StorageRig> rig(new StorageRig(options));
  KVTIER_TRY(rig->Start());
  return rig;
}

Status StorageRig::Start() {
  raw_.resize(RawBlockBytes(shape_));
  std::mt19937_64 random(kSeed);
  for (size_t i = 0; i < raw_.size(); ++i)  // finite FP16: the exponent stays below all ones
    raw_[i] = static_cast<std::byte>(i % 2 == 1 ? random() & 0x3F : random());
  image_bytes_ = PlainImageBytes(*FindCodec(CodecId::kRaw16), shape_);
  record_bytes_ = ColdRecordBytes(image_bytes_);

  std::error_code error;
  std::filesystem::create_directory(options_.folder, error);  // the store tells what is wrong with it
  KVTIER_ASSIGN(store_, ColdStore::Make({.tier = kCold,
                                         .path = options_.folder,
                                         .capacity_bytes = options_.capacity_bytes,
                                         .segment_bytes = kSegmentBytes}));
  KVTIER_ASSIGN(const ColdRecovery recovery, store_->Recover());
  allocator_ = std::make_unique<SegmentAllocator>(kCold, kSegmentBytes,
                                                  ColdSegmentLimit(options_.capacity_bytes, kSegmentBytes));
  for (const RecoveredSegment& segment : recovery.segments) allocator_->Recover(segment);
  KVTIER_TRY(store_->PutModel({.name_space = BenchNamespace(), .fields = "bench"}));

  // Every job in flight has a slot of its own.
  arena_ = {
      .id = {0}, .tier = {0}, .tenant = {1}, .slots = 64, .slot_bytes = AlignUp(image_bytes_, kSlotAlign)};
  KVTIER_TRY(arenas_.Create(arena_));
  KVTIER_ASSIGN(transfer_workers_,
                TransferWorkers::Make({.count = workers_count_}, jobs_, completions_, arenas_, metrics_));
  KVTIER_TRY(transfer_workers_->Start());
  committer_ =
      std::make_unique<Committer>(CommitterOptions{}, std::vector{CommitterStore{kCold, store_.get()}},
                                  cold_jobs_, completions_, metrics_);
  return committer_->Start();
}

MoveOrder StorageRig::OrderOf(uint32_t block) const {
  MoveOrder order;
  order.identity = {.key = {}, .name_space = BenchNamespace(), .first_position = 0, .shape = shape_};
  std::memcpy(order.identity.key.bytes.data(), &block, sizeof(block));
  order.codec = FindCodec(CodecId::kRaw16);
  return order;
}

/// Keeps `depth` jobs in flight. submit(i, lane) pushes the i-th; jobs in flight have lanes of their own.
/// A completion of a job that goes on (it was committed next) comes back from submit's own bookkeeping.
template <typename Submit>
Result<StorageRun> StorageRig::Drive(uint32_t count, uint32_t depth, const Submit& submit) {
  KVTIER_CHECK(depth > 0 && depth <= arena_.slots);
  StorageRun run;
  std::vector<double> began(depth);
  std::vector<uint32_t> free_lanes;
  for (uint32_t lane = depth; lane > 0; --lane) free_lanes.push_back(lane - 1);
  uint32_t next = 0, done = 0;
  const double cpu = CpuSeconds(), start = NowSeconds();
  while (done < count) {
    while (next < count && !free_lanes.empty()) {
      const uint32_t lane = free_lanes.back();
      free_lanes.pop_back();
      began[lane] = NowSeconds();
      submit.Begin(next++, lane);
    }
    std::optional<Completion> completion = completions_.PopUntil(SteadyClock{}.Now() + kPatience);
    if (!completion) return Status(Code::kDeadlineExceeded, "a job did not end");
    KVTIER_TRY(completion->status);
    const auto lane = static_cast<uint32_t>(completion->id.value);
    if (submit.GoesOn(*completion, lane)) continue;
    run.latency_us.Add((NowSeconds() - began[lane]) * 1e6);
    free_lanes.push_back(lane);
    ++done;
  }
  run.seconds = NowSeconds() - start;
  run.cpu_seconds = CpuSeconds() - cpu;
  run.bytes = count * record_bytes_;
  return run;
}

Result<StorageRun> StorageRig::Put(uint32_t count, uint32_t depth) {
  struct Submit {
    StorageRig& rig;
    uint32_t first;
    mutable std::vector<std::pair<uint32_t, bool>>
        lanes;  ///< block in the lane, whether it is being committed

    void Begin(uint32_t i, uint32_t lane) const {
      MoveOrder order = rig.OrderOf(first + i);
      order.staged = StagedSource{nullptr, rig.raw_};
      order.target = rig.places_[first + i];
      order.target_medium = rig.store_.get();
      lanes[lane] = {first + i, false};
      KVTIER_CHECK(rig.jobs_.TryPush(Job{.id = JobId{lane}, .work = MoveJob{std::move(order)}}));
    }
    bool GoesOn(const Completion& completion, uint32_t lane) const {
      auto& [block, committing] = lanes[lane];
      if (committing) return false;
      committing = true;
      const MoveOrder order = rig.OrderOf(block);
      ColdCommit item{.identity = order.identity,
                      .meta = {},
                      .place = rig.places_[block],
                      .codec = completion.outcome.codec,
                      .image_bytes = completion.outcome.image_bytes};
      KVTIER_CHECK(
          rig.cold_jobs_.TryPush(ColdJob{.id = completion.id, .work = CommitJob{kCold, std::move(item)}}));
      return true;
    }
  };
  const auto first = static_cast<uint32_t>(places_.size());
  for (uint32_t i = 0; i < count; ++i) {
    const std::optional<Place> place = allocator_->Append(record_bytes_, first + i);
    if (!place) return Status(Code::kResourceExhausted, "the store is full");
    places_.push_back(*place);
  }
  return Drive(count, depth, Submit{*this, first, std::vector<std::pair<uint32_t, bool>>(depth)});
}

Result<StorageRun> StorageRig::Get(uint32_t count, uint32_t depth) {
  struct Submit {
    StorageRig& rig;
    mutable std::mt19937 random{kSeed};
    mutable uint64_t epoch = 0;

    void Begin(uint32_t, uint32_t lane) const {
      const uint32_t block = static_cast<uint32_t>(random() % rig.places_.size());
      MoveOrder order = rig.OrderOf(block);
      order.source = rig.places_[block];
      order.source_medium = rig.store_.get();
      order.target = {.tier = rig.arena_.tier,
                      .container = rig.arena_.id.value,
                      .slot = lane,
                      .offset = ArenaHeaderBytes(rig.arena_.slots) + lane * rig.arena_.slot_bytes,
                      .bytes = rig.arena_.slot_bytes,
                      .epoch = rig.arenas_.ReadEpoch(rig.arena_.id, lane).value() + 1};
      order.target_medium = &rig.arenas_;
      KVTIER_CHECK(rig.jobs_.TryPush(Job{.id = JobId{lane}, .work = MoveJob{std::move(order)}}));
    }
    bool GoesOn(const Completion&, uint32_t) const { return false; }
  };
  return Drive(count, depth, Submit{*this});
}

}  // namespace kvtier::bench
