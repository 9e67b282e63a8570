#pragma once

#include <string>

#include "tiers/base/status.h"

namespace kvtier::bench {

/// One run of fio: io_uring and O_DIRECT on one file, random offsets for reads, one after another for writes.
struct FioJob {
  std::string file;
  bool write = false;
  uint64_t block_bytes = 0;
  uint32_t depth = 1;
  uint64_t file_bytes = 0;  ///< written whole before it is read
  double seconds = 1;       ///< of reads; writes go over the file once and are synced at the end
  uint64_t sync_every = 0;  ///< blocks written between one fdatasync and the next; 0: none before the end
};
struct FioResult {
  double gbps = 0;
  double p50_us = 0, p99_us = 0;
};

/// Errors: kNotFound (no fio), kUnavailable with fio's own words.
Result<FioResult> RunFio(const FioJob& job);

}  // namespace kvtier::bench
