#pragma once

#include <memory>
#include <string>

#include "client/engines/llamacpp/llama_engine.h"
#include "client/engines/llamacpp/model_identity.h"
#include "tests/eval/context_kv.h"

namespace kvtier::eval {

/// A model with one sequence, whose cache can be taken out and put back. Threads: single-owner.
class ModelRun {
 public:
  struct Options {
    std::string model_path;
    uint32_t tokens = 0;        ///< of the sequence at most
    uint32_t batch_tokens = 0;  ///< of one Continue at most
    uint32_t threads = 1;
    llamacpp::CacheType cache_type = llamacpp::CacheType::kFp16;
  };
  /// Errors: those of LlamaEngine.
  static Result<std::unique_ptr<ModelRun>> Make(const Options& options);

  /// With what the model wants at the beginning of a text.
  Result<std::vector<int32_t>> Tokenize(const std::string& text) const;
  /// Computes a context from nothing.
  Status Prefill(std::span<const int32_t> context);
  Result<std::vector<std::byte>> Save();
  /// Of an FP16 cache. Errors: those of LlamaEngine and of ContextKv.
  Result<ContextKv> SaveContext();
  Status Load(const ContextKv& context);
  /// Computes `tokens`, the last `scored` of which give logits, [scored][vocabulary], behind the context, and
  /// forgets them again.
  Result<std::vector<float>> Continue(std::span<const int32_t> tokens, uint32_t scored);

 private:
  explicit ModelRun(std::unique_ptr<llamacpp::LlamaEngine> engine) : engine_(std::move(engine)) {}

  std::unique_ptr<llamacpp::LlamaEngine> engine_;
};

}  // namespace kvtier::eval
