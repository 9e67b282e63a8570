#pragma once

#include <memory>
#include <string>

#include "client/engines/llamacpp/llama_engine.h"
#include "client/engines/llamacpp/model_identity.h"
#include "tests/eval/attend_hook.h"
#include "tests/eval/context_kv.h"

namespace kvtier::eval {

/// The model with its weights in FP32, in a file beside it, which is made unless it is there already. In
/// front of quantized weights llama.cpp rounds what comes in to 8 bits, and whatever changes a last bit
/// changes some of those roundings: a KL of its own, which hides what only a little is lost by. Errors:
/// kInvalidArgument for a file that llama.cpp does not take, or a folder that cannot be written.
Result<std::string> MakeFp32Model(const std::string& model_path);

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
  /// The same where the model attends to `blocks`, all tokens before `tokens`, instead of to its cache.
  /// Errors: also those of AttendHook.
  Result<std::vector<float>> ContinueOn(std::span<const StoredBlock> blocks, std::span<const int32_t> tokens,
                                        uint32_t scored);

 private:
  ModelRun() = default;

  AttendHook hook_;
  std::unique_ptr<llamacpp::LlamaEngine> engine_;
};

}  // namespace kvtier::eval
