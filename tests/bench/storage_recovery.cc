#include <filesystem>

#include "tests/bench/process.h"
#include "tests/bench/storage.h"
#include "tests/bench/storage_rig.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kDepth = 16;

struct Case {
  const char* name;
  uint64_t block_bytes;
  uint32_t blocks;
  bool by_count;  ///< the figure is per million blocks, not per GB
};

/// Seconds until an existing store has told what is in it.
Result<double> SecondsToRecover(const ColdStoreOptions& options, uint64_t blocks) {
  const double start = NowSeconds();
  KVTIER_ASSIGN(const std::unique_ptr<ColdStore> store, ColdStore::Make(options));
  KVTIER_ASSIGN(const ColdRecovery recovery, store->Recover());
  const double seconds = NowSeconds() - start;
  if (recovery.blocks.size() != blocks)
    return Status(Code::kDataLoss, "recovered " + std::to_string(recovery.blocks.size()) + " blocks of " +
                                       std::to_string(blocks));
  return seconds;
}

Status MeasureCase(const Case& c, const StorageOptions& options, Report& report) {
  report.Progress(std::string("recovery: ") + c.name);
  KVTIER_ASSIGN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Make(options.folder));
  const std::string path = folder->path() + "/store";
  uint64_t capacity_bytes = 0;
  double units = 0;
  {
    // The size of a record is known once there is a rig: a first one with room for nothing else tells it.
    const uint64_t bytes_per_block = c.block_bytes + 8192;
    capacity_bytes = c.blocks * bytes_per_block * 5 / 4 + (uint64_t{512} << 20);
    KVTIER_ASSIGN(
        const std::unique_ptr<StorageRig> rig,
        StorageRig::Make({.folder = path, .capacity_bytes = capacity_bytes, .block_bytes = c.block_bytes}));
    KVTIER_TRY(rig->Put(c.blocks, kDepth).status());
    units = c.by_count ? c.blocks / 1e6 : static_cast<double>(c.blocks * rig->record_bytes()) / 1e9;
  }
  const ColdStoreOptions store{.tier = TierId{1}, .path = path, .capacity_bytes = capacity_bytes};
  const std::string unit = c.by_count ? "s/million blocks" : "s/GB";
  KVTIER_ASSIGN(const double by_index, SecondsToRecover(store, c.blocks));
  report.Figure(std::string("recovery by index, ") + c.name, by_index / units, unit);
  std::filesystem::remove_all(path + "/index");
  KVTIER_ASSIGN(const double by_scan, SecondsToRecover(store, c.blocks));
  report.Figure(std::string("recovery by scan, ") + c.name, by_scan / units, unit);
  return Status::Ok();
}

}  // namespace

void MeasureStorageRecovery(const StorageOptions& options, Report& report) {
  const Case full[] = {{"1 MiB blocks", 1 << 20, 10240, false}, {"blocks of one page", 0, 200'000, true}};
  const Case quick[] = {{"1 MiB blocks", 1 << 20, 512, false}, {"blocks of one page", 0, 20'000, true}};
  for (const Case& c : options.common.quick ? quick : full) {
    const Status status = MeasureCase(c, options, report);
    if (!status.ok()) report.Failed(std::string("recovery, ") + c.name, status);
  }
}

}  // namespace kvtier::bench
