#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::llamacpp {

/// K and V of one sequence inside the engine, moved as states (seq_state.h). Threads: the engine's own.
class SequenceMemory {
 public:
  virtual ~SequenceMemory() = default;
  /// State of the tokens at positions [first, first + tokens), which the engine has. Errors: the engine's.
  virtual Result<std::vector<std::byte>> Save(int32_t first, uint32_t tokens) = 0;
  /// Puts a state behind the tokens that are there. Errors: the engine's; then the sequence is as it was.
  virtual Status Append(std::span<const std::byte> state) = 0;
  /// Drops what is behind the first `tokens` tokens.
  virtual void Truncate(uint32_t tokens) = 0;
};

}  // namespace kvtier::llamacpp
