#pragma once

#include <vector>

#include "client/engines/llamacpp/llama_engine.h"
#include "client/engines/llamacpp/llama_text.h"

namespace kvtier::llamacpp {

/// A LlamaEngine with a sampler for each sequence; the same seed chooses the same tokens from the same
/// logits. The engine outlives it. Threads: single-owner, the engine's.
class LlamaTokenEngine final : public TokenEngine {
 public:
  explicit LlamaTokenEngine(LlamaEngine& engine);

  void Begin(uint32_t sequence, const Sampling& sampling) override;
  SequenceMemory& Memory(uint32_t sequence) override { return engine_.Memory(sequence); }
  Status Decode(std::span<const BatchToken> batch) override { return engine_.Decode(batch); }
  int32_t Choose(uint32_t sequence, uint32_t index) override;
  std::string Piece(int32_t token) const override { return text_.Piece(token); }
  bool EndsGeneration(int32_t token) const override { return text_.EndsGeneration(token); }

 private:
  LlamaEngine& engine_;
  const LlamaText text_;
  std::vector<LlamaSamplerPtr> samplers_;  ///< by sequence
};

}  // namespace kvtier::llamacpp
