#include "tests/bench/process.h"
#include "tests/bench/storage.h"
#include "tests/bench/storage_rig.h"

namespace kvtier::bench {
namespace {

constexpr double kBound = 5;  ///< of the p99 on an idle device
constexpr uint64_t kStoredBytes = uint64_t{256} << 20;

Status MeasureSize(uint64_t block_bytes, const StorageOptions& options, Report& report) {
  const std::string name = "get " + std::to_string(block_bytes >> 10) + " KiB";
  report.Progress(name + " while the device is written to");
  KVTIER_ASSIGN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Make(options.folder));
  KVTIER_ASSIGN(const std::unique_ptr<StorageRig> rig, StorageRig::Make({.folder = folder->path() + "/store",
                                                                         .capacity_bytes = 4 * kStoredBytes,
                                                                         .block_bytes = block_bytes,
                                                                         .workers = options.workers}));
  KVTIER_TRY(rig->Put(static_cast<uint32_t>(kStoredBytes / block_bytes), 16).status());
  const uint32_t reads = options.common.quick ? 200 : 500;
  Samples idle, busy, ratio;
  for (uint32_t round = 0; round <= (options.common.quick ? 3u : 5u); ++round) {
    KVTIER_ASSIGN(const StorageRun alone, rig->Get(reads, 1));
    KVTIER_ASSIGN(const StorageRun beside, rig->GetWhileWriting(reads));
    if (round == 0) continue;
    idle.Add(alone.latency_us.Percentile(99));
    busy.Add(beside.latency_us.Percentile(99));
    ratio.Add(busy.Last() / idle.Last());
  }
  report.Figure(name + ", idle device: p99", idle.Median(), "us");
  report.Figure(name + ", full write queue: p99", busy.Median(), "us");
  report.AtMost(name + ", full write queue: p99 of idle", ratio.Median(), kBound, "x");
  return Status::Ok();
}

}  // namespace

void MeasureStorageReadsUnderWrites(const StorageOptions& options, Report& report) {
  for (const uint64_t block_bytes : {uint64_t{64} << 10, uint64_t{1} << 20}) {
    const Status status = MeasureSize(block_bytes, options, report);
    if (!status.ok()) report.Failed("get while the device is written to", status);
  }
}

}  // namespace kvtier::bench
