#include <algorithm>
#include <filesystem>

#include "tests/bench/fio.h"
#include "tests/bench/process.h"
#include "tests/bench/storage.h"
#include "tests/bench/storage_rig.h"

namespace kvtier::bench {
namespace {

constexpr double kBound = 0.8;  ///< of fio's throughput
/// Room for what fails to be deleted in time and for the index.
constexpr uint64_t kSlackBytes = uint64_t{512} << 20;

struct Case {
  uint64_t block_bytes;
  uint32_t depth;
};
constexpr Case kCases[] = {{64 << 10, 1}, {64 << 10, 16}, {256 << 10, 1}, {256 << 10, 16},
                           {1 << 20, 1},  {1 << 20, 16},  {4 << 20, 1},   {4 << 20, 16}};
constexpr Case kQuickCases[] = {{64 << 10, 16}, {1 << 20, 1}, {1 << 20, 16}, {4 << 20, 16}};

std::string NameOf(const Case& c, std::string_view what) {
  const uint64_t kib = c.block_bytes >> 10;
  const std::string size = kib < 1024 ? std::to_string(kib) + " KiB" : std::to_string(kib >> 10) + " MiB";
  return std::string(what) + " " + size + ", depth " + std::to_string(c.depth);
}

/// Medians over the rounds of one case, kvtier's and fio's turns one after the other in each.
struct Rounds {
  Samples gbps, fio_gbps, ratio, p50, p99, fio_p50, fio_p99, cpu;
  Samples group, fio_synced_gbps, synced_ratio;  ///< of puts: blocks a sync, and fio that syncs as often

  void Add(const StorageRun& own, const FioResult& fio) {
    gbps.Add(own.gbps());
    fio_gbps.Add(fio.gbps);
    ratio.Add(own.gbps() / fio.gbps);
    p50.Add(own.latency_us.Percentile(50));
    p99.Add(own.latency_us.Percentile(99));
    fio_p50.Add(fio.p50_us);
    fio_p99.Add(fio.p99_us);
    cpu.Add(own.cpu_seconds_per_gb());
  }
  void AddSynced(double blocks_per_sync, const StorageRun& own, const FioResult& fio) {
    group.Add(blocks_per_sync);
    fio_synced_gbps.Add(fio.gbps);
    synced_ratio.Add(own.gbps() / fio.gbps);
  }
  void TellSynced(const std::string& name, Report& report) const {
    report.Figure(name + ": blocks a sync", group.Median(), "");
    report.Figure(name + ": fio that syncs as often", fio_synced_gbps.Median(), "GB/s");
    report.Figure(name + ": of fio that syncs as often", synced_ratio.Median(), "x");
  }
  void Tell(const std::string& name, bool bound, Report& report) const {
    report.Figure(name, gbps.Median(), "GB/s");
    report.Figure(name + ": fio", fio_gbps.Median(), "GB/s");
    if (bound) {
      report.AtLeast(name + ": of fio", ratio.Median(), kBound, "x");
    } else {
      report.Figure(name + ": of fio", ratio.Median(), "x");
    }
    report.Figure(name + ": p50", p50.Median(), "us");
    report.Figure(name + ": p50 of fio", fio_p50.Median(), "us");
    report.Figure(name + ": p99", p99.Median(), "us");
    report.Figure(name + ": p99 of fio", fio_p99.Median(), "us");
    report.Figure(name + ": CPU", cpu.Median(), "s/GB");
  }
};

Status MeasureCase(const Case& c, const StorageOptions& options, Report& report) {
  const uint64_t working_set = options.common.quick ? uint64_t{256} << 20 : uint64_t{1} << 30;
  const uint32_t rounds = options.common.quick ? 3 : 5;
  const auto blocks = static_cast<uint32_t>(working_set / c.block_bytes);
  report.Progress(NameOf(c, "put and get"));

  KVTIER_ASSIGN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Make(options.folder));
  KVTIER_ASSIGN(const std::unique_ptr<StorageRig> rig,
                StorageRig::Make({.folder = folder->path() + "/store",
                                  .capacity_bytes = (rounds + 1) * working_set * 5 / 4 + kSlackBytes,
                                  .block_bytes = c.block_bytes,
                                  .workers = options.workers}));
  if (!rig->direct_io()) report.Progress("O_DIRECT does not work here: figures are of the page cache");
  FioJob fio{.file = folder->path() + "/fio",
             .block_bytes = rig->record_bytes(),
             .depth = c.depth,
             .file_bytes = working_set};
  Rounds put, again, get;
  for (uint32_t round = 0; round <= rounds; ++round) {
    fio.write = true;
    std::filesystem::remove(fio.file);  // kvtier's segments are new files too
    KVTIER_ASSIGN(const StorageRun own_put, rig->Put(blocks, c.depth));
    KVTIER_ASSIGN(const FioResult fio_put, RunFio(fio));
    const uint64_t group = (blocks + own_put.commits / 2) / own_put.commits;
    fio.sync_every = std::max<uint64_t>(group, 1);
    std::filesystem::remove(fio.file);
    KVTIER_ASSIGN(const FioResult fio_synced_put, RunFio(fio));
    fio.sync_every = 0;
    KVTIER_ASSIGN(const StorageRun own_again, rig->PutAgain(blocks, c.depth));
    KVTIER_ASSIGN(const FioResult fio_again, RunFio(fio));  // over its file
    fio.write = false;
    KVTIER_ASSIGN(const StorageRun own_get, rig->Get(blocks, c.depth));
    fio.seconds = std::clamp(own_get.seconds, 0.2, 5.0);
    KVTIER_ASSIGN(const FioResult fio_get, RunFio(fio));
    if (round == 0) continue;  // both have met the files
    put.Add(own_put, fio_put);
    put.AddSynced(static_cast<double>(blocks) / static_cast<double>(own_put.commits), own_put,
                  fio_synced_put);
    again.Add(own_again, fio_again);
    get.Add(own_get, fio_get);
  }
  const bool bound = c.depth > 1;
  put.Tell(NameOf(c, "put"), bound, report);
  put.TellSynced(NameOf(c, "put"), report);
  again.Tell(NameOf(c, "put again"), /*bound=*/false, report);
  get.Tell(NameOf(c, "get"), bound, report);
  return Status::Ok();
}

}  // namespace

void MeasureStorageTransfers(const StorageOptions& options, Report& report) {
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  if (options.common.quick) cases.assign(std::begin(kQuickCases), std::end(kQuickCases));
  if (options.block_kib != 0) cases = {{uint64_t{options.block_kib} << 10, options.depth}};
  for (const Case& c : cases) {
    const Status status = MeasureCase(c, options, report);
    if (!status.ok()) report.Failed(NameOf(c, "storage"), status);
  }
}

}  // namespace kvtier::bench
