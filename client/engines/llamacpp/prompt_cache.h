#pragma once

#include <kvtier/kvtier.h>

#include <array>
#include <cstdint>
#include <span>

#include "client/engines/llamacpp/sequence_memory.h"
#include "tiers/base/clock.h"
#include "tiers/base/status.h"

namespace kvtier::llamacpp {

/// What one restore brought back.
struct RestoreReport {
  uint32_t tokens = 0;  ///< at the front of the sequence, now in the engine
  uint32_t full_tokens =
      0;  ///< of full blocks, which need not be stored again: the last of them may be cut short
  std::array<uint32_t, 4> blocks_by_tier{};
  kvtier_precision lowest = KVTIER_BITS16;  ///< of the blocks
  float k_error_max = 0, v_error_max = 0;   ///< relative rms, worst block
  Status ended = Status::Ok();              ///< why it was not more: kNotFound for a plain miss
  Duration took = Duration::zero();
};

struct StoreReport {
  uint32_t blocks = 0;           ///< handed over, or there already
  uint32_t full_tokens_end = 0;  ///< what is before this position need not be stored again
  Status ended = Status::Ok();   ///< why not all
  Duration took = Duration::zero();
};

/// Where the KV of prompts is kept between requests. Every call ends within a budget of the cache's own, and
/// what it does not bring is computed. Threads: single-owner, the engine's.
class PromptCache {
 public:
  virtual ~PromptCache() = default;
  /// Fills an empty sequence with what hits of `tokens`, from the front, at least one token short of all.
  virtual RestoreReport Restore(std::span<const int32_t> tokens, SequenceMemory& memory) = 0;
  /// Hands over the blocks of `tokens`, all of which are in `memory`, from position `own_from` on: what was
  /// restored, or stored before, is before it.
  virtual StoreReport Store(std::span<const int32_t> tokens, uint32_t own_from, SequenceMemory& memory) = 0;
  virtual uint32_t tokens_per_block() const = 0;
  /// Whether the cache answered when it was last asked.
  virtual bool connected() const = 0;
};

}  // namespace kvtier::llamacpp
