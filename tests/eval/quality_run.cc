#include "tests/eval/quality_run.h"

#include "tests/eval/methods.h"
#include "tests/eval/model_run.h"
#include "tests/eval/progress.h"

namespace kvtier::eval {
namespace {

/// The model three times: with the cache that is right, and with llama.cpp's own quantized ones.
class Runs {
 public:
  Runs(const QualityOptions& options, std::string model) : options_(options), model_(std::move(model)) {}

  Result<ModelRun*> Get(llamacpp::CacheType type) {
    std::unique_ptr<ModelRun>& run = runs_[type];
    if (run == nullptr) {
      KVTIER_ASSIGN(run, ModelRun::Make({.model_path = model_,
                                         .tokens = options_.context + options_.scored,
                                         .batch_tokens = options_.scored,
                                         .threads = options_.common.threads,
                                         .cache_type = type}));
    }
    return run.get();
  }

 private:
  const QualityOptions& options_;
  const std::string model_;
  std::map<llamacpp::CacheType, std::unique_ptr<ModelRun>> runs_;
};

struct Window {
  std::span<const int32_t> context, scored, next;
};

class TextRun {
 public:
  TextRun(const QualityOptions& options, Runs& runs, Progress& progress)
      : options_(options), runs_(runs), progress_(progress) {}

  Result<TextScores> Run(const Text& text) {
    KVTIER_ASSIGN(ModelRun* const run, runs_.Get(llamacpp::CacheType::kFp16));
    KVTIER_ASSIGN(const std::vector<int32_t> tokens, run->Tokenize(text.contents));
    const size_t window_tokens = options_.context + options_.scored + 1;
    KVTIER_ASSIGN(const std::vector<size_t> starts,
                  WindowStarts(tokens.size(), window_tokens, options_.windows));
    scores_ = {.text = text.name, .tokens = tokens.size(), .methods = {}};
    for (size_t i = 0; i < starts.size(); ++i) {
      progress_.Step(text.name + ", window " + std::to_string(i + 1) + " of " +
                     std::to_string(starts.size()));
      const std::span<const int32_t> all(&tokens[starts[i]], window_tokens);
      KVTIER_TRY(RunWindow(*run, {.context = all.first(options_.context),
                                  .scored = all.subspan(options_.context, options_.scored),
                                  .next = all.last(options_.scored)}));
    }
    return std::move(scores_);
  }

 private:
  Status RunWindow(ModelRun& run, const Window& window) {
    progress_.Show("FP16");
    KVTIER_TRY(run.Prefill(window.context));
    KVTIER_ASSIGN(const ContextKv context, run.SaveContext());
    KVTIER_ASSIGN(const std::vector<float> logits, run.Continue(window.scored, options_.scored));
    const RightLogits right(logits, {window.next.begin(), window.next.end()});
    for (const Method& method : AllMethods()) {
      KVTIER_TRY(RunDecoded(method, context, run, window, right));
      KVTIER_TRY(RunAttended(method, context, run, window, right));
    }
    KVTIER_TRY(RunStock(kQ8Cache, llamacpp::CacheType::kQ8_0, window, context.elements(), right));
    return RunStock(kQ4Cache, llamacpp::CacheType::kQ4_0, window, context.elements(), right);
  }

  Status RunDecoded(const Method& method, ContextKv context, ModelRun& run, const Window& window,
                    const RightLogits& right) {
    if (!IsWanted(options_.common, method.name)) return Status::Ok();
    progress_.Show(method.name);
    KVTIER_ASSIGN(const double bits, method.store(context));
    KVTIER_TRY(run.Load(context));
    KVTIER_ASSIGN(const std::vector<float> logits, run.Continue(window.scored, options_.scored));
    Keep(method.name, bits / context.elements(), right.Score(logits));
    return Status::Ok();
  }

  Status RunAttended(const Method& method, ContextKv context, ModelRun& run, const Window& window,
                     const RightLogits& right) {
    const std::string name = method.name + kAttended;
    if (!method.encode || !IsWanted(options_.common, name)) return Status::Ok();
    progress_.Show(name);
    KVTIER_ASSIGN(const std::vector<StoredBlock> blocks, method.encode(context));
    context.Blank();  // so that nothing but the blocks can be what the model attends to
    KVTIER_TRY(run.Load(context));
    KVTIER_ASSIGN(const std::vector<float> logits, run.ContinueOn(blocks, window.scored, options_.scored));
    Keep(name, BitsOf(blocks) / context.elements(), right.Score(logits));
    return Status::Ok();
  }

  Status RunStock(const std::string& name, llamacpp::CacheType type, const Window& window, double elements,
                  const RightLogits& right) {
    if (!IsWanted(options_.common, name)) return Status::Ok();
    progress_.Show(name);
    KVTIER_ASSIGN(ModelRun* const run, runs_.Get(type));
    KVTIER_TRY(run->Prefill(window.context));
    KVTIER_ASSIGN(const std::vector<std::byte> state, run->Save());
    KVTIER_ASSIGN(const std::vector<float> logits, run->Continue(window.scored, options_.scored));
    Keep(name, 8.0 * static_cast<double>(state.size()) / elements, right.Score(logits));
    return Status::Ok();
  }

  void Keep(const std::string& name, double bits_per_element, std::vector<TokenScore> window) {
    MethodScores* scores = nullptr;
    for (MethodScores& known : scores_.methods)
      if (known.method == name) scores = &known;
    if (scores == nullptr)
      scores = &scores_.methods.emplace_back(
          MethodScores{.method = name, .bits_per_element = bits_per_element, .windows = {}});
    scores->windows.push_back(std::move(window));
  }

  const QualityOptions& options_;
  Runs& runs_;
  Progress& progress_;
  TextScores scores_;
};

}  // namespace

Result<std::vector<TextScores>> RunQuality(const QualityOptions& options) {
  Progress progress;
  std::string model = options.common.model;
  if (options.fp32) {
    KVTIER_ASSIGN(model, MakeFp32Model(options.common.model));
  }
  Runs runs(options, std::move(model));
  std::vector<TextScores> results;
  for (const std::string& option : options.common.texts) {
    KVTIER_ASSIGN(const Text text, LoadText(option));
    KVTIER_ASSIGN(TextScores scores, TextRun(options, runs, progress).Run(text));
    results.push_back(std::move(scores));
  }
  return results;
}

}  // namespace kvtier::eval
