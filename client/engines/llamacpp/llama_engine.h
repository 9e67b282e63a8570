#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/engines/llamacpp/llama_handles.h"
#include "client/engines/llamacpp/token_engine.h"

namespace kvtier::llamacpp {

/// Of the engine's own cache. Only states of FP16 caches are kvtier's; the others are there to compare with.
enum class CacheType : uint8_t { kFp16, kQ8_0, kQ4_0 };

struct EngineOptions {
  std::string model_path;
  uint32_t sequences = 1;           ///< that are in the cache at the same time
  uint32_t sequence_tokens = 2048;  ///< of each
  uint32_t batch_tokens = 256;      ///< of one Decode
  uint32_t threads = 1;
  CacheType cache_type = CacheType::kFp16;
  /// llama.cpp's cb_eval: asked before a node of a Decode is computed, called after it where the answer was
  /// true. Null: none.
  bool (*on_node)(ggml_tensor* node, bool ask, void* state) = nullptr;
  void* on_node_state = nullptr;
};

/// A model and its KV cache as kvtier needs them: FP16 (by default), one unified stream, flash attention, so
/// that a state has whole rows of K and of V (seq_state.h). Only llama.cpp's public C API is used. Threads:
/// single-owner, but for model().
class LlamaEngine {
 public:
  /// Loads the model; takes seconds. Errors: kInvalidArgument for a file that llama.cpp does not take or a
  /// model that does not generate text.
  static Result<std::unique_ptr<LlamaEngine>> Make(const EngineOptions& options);
  ~LlamaEngine();
  LlamaEngine(const LlamaEngine&) = delete;
  LlamaEngine& operator=(const LlamaEngine&) = delete;

  const EngineOptions& options() const { return options_; }
  const llama_model* model() const { return model_.get(); }
  llama_context* context() { return context_.get(); }

  /// Tokens of a sequence in the cache.
  uint32_t Length(uint32_t sequence) const;
  void Clear(uint32_t sequence);
  SequenceMemory& Memory(uint32_t sequence) { return *memories_[sequence]; }

  /// Computes at most batch_tokens tokens. Errors: kResourceExhausted without cells; kInternal. After an
  /// error the sequences of the batch are in no known state: clear them.
  Status Decode(std::span<const BatchToken> batch);
  /// Of batch token `index` of the last Decode, which wanted them.
  std::span<const float> Logits(uint32_t index) const;

 private:
  explicit LlamaEngine(const EngineOptions& options) : options_(options) {}

  const EngineOptions options_;
  LlamaModelPtr model_;
  LlamaContextPtr context_;
  std::vector<std::unique_ptr<SequenceMemory>> memories_;
};

/// Lines of llama.cpp's log: only warnings and errors go to stderr. For the whole process.
void QuietLlamaLog();

}  // namespace kvtier::llamacpp
