#include <CLI/CLI.hpp>
#include <memory>

#include "tests/bench/commands.h"
#include "tests/bench/storage.h"

namespace kvtier::bench {

void AddStorage(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<StorageOptions>();
  CLI::App* storage = app.add_subcommand("storage", "The cold store beside fio on the same file system");
  storage->add_flag("--quick", options->common.quick, "Fewer sizes, depths and rounds");
  storage->add_flag("--json", options->common.json, "One JSON object instead of the table");
  storage->add_option("--folder", options->folder, "Where to write; some 12 GiB, removed at the end")
      ->check(CLI::ExistingDirectory);
  storage->add_option("--only", options->only, "One part")
      ->check(CLI::IsMember({"transfers", "latency", "recovery", "amplification"}));
  storage->add_option("--workers", options->workers, "Transfer workers, instead of the daemon's default")
      ->check(CLI::Range(1, 64));
  storage->add_option("--block-kib", options->block_kib, "Blocks of this size alone, a multiple of 64")
      ->check(CLI::Validator(
          [](std::string& text) { return std::atoi(text.c_str()) % 64 == 0 ? "" : "not a multiple of 64"; },
          "64, 128, ..."));
  storage->add_option("--depth", options->depth, "With --block-kib: blocks in flight")
      ->check(CLI::Range(1, 64));
  storage->callback([options, &exit_status] {
    Report report("storage");
    if (options->only.empty() || options->only == "transfers") MeasureStorageTransfers(*options, report);
    if (options->only.empty() || options->only == "latency") MeasureStorageReadsUnderWrites(*options, report);
    if (options->only.empty() || options->only == "recovery") MeasureStorageRecovery(*options, report);
#ifdef KVTIER_BENCH_LADDER
    if (options->only.empty() || options->only == "amplification")
      MeasureStorageAmplification(*options, report);
#endif
    exit_status = report.Print(options->common);
  });
}

}  // namespace kvtier::bench
