#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "kernels/batch.h"

namespace kvtier {

/// Any batch of kernels/batch.h.
using AnyBatch = std::variant<EncodeBatchArgs, RequantizeBatchArgs, CutBatchArgs, DecodeBatchArgs,
                              AttendBatchArgs, CombineBatchArgs>;

/// Who runs batches: a GPU, or lanes on the CPU. Threads: one.
class BatchMachine {
 public:
  virtual ~BatchMachine() = default;
  /// Memory for the host and the lanes, at a multiple of 256 bytes, filled with 0xCD, until the machine goes.
  virtual std::byte* Allocate(uint64_t bytes) = 0;
  /// Runs a batch to its end. Null: it went well; else what went wrong.
  virtual const char* Run(const AnyBatch& batch) = 0;
};

}  // namespace kvtier
