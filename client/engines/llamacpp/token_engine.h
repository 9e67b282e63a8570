#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "client/engines/llamacpp/sequence_memory.h"
#include "tiers/base/status.h"

namespace kvtier::llamacpp {

struct BatchToken {
  int32_t token = 0;
  int32_t position = 0;
  uint32_t sequence = 0;
  bool wants_logits = false;
};

struct Sampling {
  float temperature = 1;  ///< 0: the most probable token
  float top_p = 1;
  int32_t top_k = 40;
  uint32_t seed = 0;
};

/// An engine that computes several sequences at once, as the scheduler sees it. Threads: single-owner.
class TokenEngine {
 public:
  virtual ~TokenEngine() = default;
  /// Empties a sequence for a request that samples so.
  virtual void Begin(uint32_t sequence, const Sampling& sampling) = 0;
  virtual SequenceMemory& Memory(uint32_t sequence) = 0;
  /// Computes one batch. Errors: after one, the sequences of the batch are in no known state.
  virtual Status Decode(std::span<const BatchToken> batch) = 0;
  /// The sequence's next token, from the logits of batch token `index` of the last Decode.
  virtual int32_t Choose(uint32_t sequence, uint32_t index) = 0;
  /// Bytes of a token, perhaps part of a character.
  virtual std::string Piece(int32_t token) const = 0;
  virtual bool EndsGeneration(int32_t token) const = 0;
};

}  // namespace kvtier::llamacpp
