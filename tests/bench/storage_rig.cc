#include "tests/bench/storage_rig.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

namespace kvtier::bench {
namespace {

constexpr TierId kCold{1};
constexpr uint64_t kSegmentBytes = uint64_t{64} << 20;
/// More than a job may take on any device that is worth a measurement.
constexpr Duration kPatience = std::chrono::seconds(60);
constexpr size_t kQueue = 1024;
/// As the engine bounds what goes down into a cold tier, and the part of it that is being written.
constexpr uint32_t kMaxUncommitted = 32;
constexpr uint32_t kMaxSmallUncommitted = 256;
constexpr uint64_t kMaxSmallUncommittedBytes = uint64_t{16} << 20;
constexpr uint32_t kMaxWritesOfEngine = 24;
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
  committer_ = std::make_unique<Committer>(CommitterOptions{.on_completion = [this] { ++commits_; }},
                                           std::vector{CommitterStore{kCold, store_.get()}}, cold_jobs_,
                                           completions_, metrics_);
  return committer_->Start();
}

MoveOrder StorageRig::OrderOf(uint32_t block) const {
  MoveOrder order;
  order.identity = {.key = {}, .name_space = BenchNamespace(), .first_position = 0, .shape = shape_};
  std::memcpy(order.identity.key.bytes.data(), &block, sizeof(block));
  order.codec = FindCodec(CodecId::kRaw16);
  return order;
}

MoveOrder StorageRig::PutOrder(uint32_t block) const {
  MoveOrder order = OrderOf(block);
  order.staged = StagedSource{nullptr, raw_};
  order.target = places_[block];
  order.target_medium = store_.get();
  return order;
}

MoveOrder StorageRig::GetOrder(uint32_t block, uint32_t lane) {
  MoveOrder order = OrderOf(block);
  order.source = places_[block];
  order.source_medium = store_.get();
  order.target = {.tier = arena_.tier,
                  .container = arena_.id.value,
                  .slot = lane,
                  .offset = ArenaHeaderBytes(arena_.slots) + lane * arena_.slot_bytes,
                  .bytes = arena_.slot_bytes,
                  .epoch = arenas_.ReadEpoch(arena_.id, lane).value() + 1};
  order.target_medium = &arenas_;
  return order;
}

void StorageRig::Commit(uint32_t block, const Completion& written) {
  ColdCommit item{.identity = OrderOf(block).identity,
                  .meta = {},
                  .place = places_[block],
                  .codec = written.outcome.codec,
                  .image_bytes = written.outcome.image_bytes};
  KVTIER_CHECK(cold_jobs_.TryPush(ColdJob{.id = written.id, .work = CommitJob{kCold, std::move(item)}}));
}

Status StorageRig::PlaceMore(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const std::optional<Place> place = allocator_->Append(record_bytes_, places_.size());
    if (!place) return Status(Code::kResourceExhausted, "the store is full");
    places_.push_back(*place);
  }
  return Status::Ok();
}

Result<Completion> StorageRig::Await() {
  std::optional<Completion> completion = completions_.PopUntil(SteadyClock{}.Now() + kPatience);
  if (!completion) return Status(Code::kDeadlineExceeded, "a job did not end");
  KVTIER_TRY(completion->status);
  return *std::move(completion);
}

Result<StorageRun> StorageRig::Put(uint32_t count, uint32_t depth) {
  const auto first = static_cast<uint32_t>(places_.size());
  KVTIER_TRY(PlaceMore(count));
  return Write(first, count, depth);
}

Result<StorageRun> StorageRig::PutAgain(uint32_t count, uint32_t depth) {
  KVTIER_CHECK(count <= places_.size());
  return Write(0, count, depth);
}

Result<StorageRun> StorageRig::Write(uint32_t first, uint32_t count, uint32_t depth) {
  StorageRun run;
  std::vector<double> began(count);
  const uint64_t small = kMaxSmallUncommittedBytes / record_bytes_;
  const auto max_uncommitted =
      static_cast<uint32_t>(std::clamp<uint64_t>(small, kMaxUncommitted, kMaxSmallUncommitted));
  uint32_t next = 0, written = 0, done = 0;
  std::vector<bool> committing(count);
  const uint64_t commits_before = commits_;
  const double cpu = CpuSeconds(), start = NowSeconds();
  while (done < count) {
    for (; next < count && next - written < depth && next - done < max_uncommitted; ++next) {
      began[next] = NowSeconds();
      KVTIER_CHECK(jobs_.TryPush(Job{.id = JobId{next}, .work = MoveJob{PutOrder(first + next)}}));
    }
    KVTIER_ASSIGN(const Completion completion, Await());
    const auto i = static_cast<uint32_t>(completion.id.value);
    if (!committing[i]) {
      committing[i] = true;
      ++written;
      Commit(first + i, completion);
      continue;
    }
    run.latency_us.Add((NowSeconds() - began[i]) * 1e6);
    ++done;
  }
  run.seconds = NowSeconds() - start;
  run.cpu_seconds = CpuSeconds() - cpu;
  run.bytes = count * record_bytes_;
  // The last of them is counted after its completions are seen here.
  run.commits = std::max<uint64_t>(commits_ - commits_before, 1);
  return run;
}

Result<StorageRun> StorageRig::Get(uint32_t count, uint32_t depth) {
  KVTIER_CHECK(depth > 0 && depth <= arena_.slots);
  const auto stored = static_cast<uint32_t>(places_.size());
  std::mt19937 random(kSeed);
  StorageRun run;
  std::vector<double> began(depth);
  std::vector<uint32_t> free_lanes(depth);
  std::iota(free_lanes.rbegin(), free_lanes.rend(), 0);
  uint32_t next = 0, done = 0;
  const double cpu = CpuSeconds(), start = NowSeconds();
  while (done < count) {
    for (; next < count && !free_lanes.empty(); ++next) {
      const uint32_t lane = free_lanes.back();
      free_lanes.pop_back();
      began[lane] = NowSeconds();
      KVTIER_CHECK(jobs_.TryPush(Job{.id = JobId{lane}, .work = MoveJob{GetOrder(random() % stored, lane)}}));
    }
    KVTIER_ASSIGN(const Completion completion, Await());
    const auto lane = static_cast<uint32_t>(completion.id.value);
    run.latency_us.Add((NowSeconds() - began[lane]) * 1e6);
    free_lanes.push_back(lane);
    ++done;
  }
  run.seconds = NowSeconds() - start;
  run.cpu_seconds = CpuSeconds() - cpu;
  run.bytes = count * record_bytes_;
  return run;
}

Result<StorageRun> StorageRig::GetWhileWriting(uint32_t count) {
  constexpr JobId kRead{uint64_t{1} << 32};
  KVTIER_CHECK(places_.size() > kMaxUncommitted);
  const auto others = static_cast<uint32_t>(places_.size() - kMaxUncommitted);
  std::mt19937 random(kSeed);
  StorageRun run;
  std::vector<uint32_t> idle, writing, committing;  // blocks that are written again and again
  for (uint32_t i = 0; i < kMaxUncommitted; ++i) idle.push_back(others + i);
  uint32_t begun = 0, done = 0, wrote = 0;
  double began = 0;
  const double start = NowSeconds();
  while (done < count || idle.size() < kMaxUncommitted) {
    while (done < count && !idle.empty() && writing.size() < kMaxWritesOfEngine) {
      writing.push_back(idle.back());
      idle.pop_back();
      const uint32_t block = writing.back();
      KVTIER_CHECK(jobs_.TryPush(Job{.id = JobId{block}, .work = MoveJob{PutOrder(block)}}));
    }
    if (begun == done && done < count && wrote > 0) {
      ++begun;
      began = NowSeconds();
      KVTIER_CHECK(jobs_.TryPushUrgent(Job{.id = kRead, .work = MoveJob{GetOrder(random() % others, 0)}}));
    }
    KVTIER_ASSIGN(const Completion completion, Await());
    if (completion.id == kRead) {
      run.latency_us.Add((NowSeconds() - began) * 1e6);
      ++done;
      continue;
    }
    const auto block = static_cast<uint32_t>(completion.id.value);
    if (std::erase(writing, block) > 0) {
      committing.push_back(block);
      Commit(block, completion);
      ++wrote;
    } else {
      std::erase(committing, block);
      idle.push_back(block);
    }
  }
  run.seconds = NowSeconds() - start;
  run.bytes = count * record_bytes_;
  return run;
}

}  // namespace kvtier::bench
