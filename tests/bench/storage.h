#pragma once

#include <string>

#include "tests/bench/bench.h"

namespace kvtier::bench {

struct StorageOptions {
  Options common;
  std::string folder;      ///< on the file system to measure; empty: the system's temporary one
  std::string only;        ///< one part's name; empty: all
  uint32_t workers = 0;    ///< 0: as many as the daemon takes by default
  uint32_t block_kib = 0;  ///< with `depth`: this case alone, a multiple of 64
  uint32_t depth = 16;
};

/// Gets and puts by size and depth beside fio on the same file system, in the same rounds.
void MeasureStorageTransfers(const StorageOptions& options, Report& report);
/// How long a read takes while the device has all the writes that the engine lets it have, beside an idle
/// one.
void MeasureStorageReadsUnderWrites(const StorageOptions& options, Report& report);
/// Start of a store by its index, and without it by a scan.
void MeasureStorageRecovery(const StorageOptions& options, Report& report);

/// What a real daemon writes to its device, by cause, and how often it hits, when far more blocks are asked
/// for than its cold tier holds: under each policy of admission and reclaim. Only where the daemon is built.
void MeasureStorageAmplification(const StorageOptions& options, Report& report);

}  // namespace kvtier::bench
