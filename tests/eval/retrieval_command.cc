#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/eval/commands.h"
#include "tests/eval/facts.h"
#include "tests/eval/logits_score.h"
#include "tests/eval/methods.h"
#include "tests/eval/model_run.h"
#include "tests/eval/progress.h"
#include "tests/eval/texts.h"
#include "tiers/base/check.h"

namespace kvtier::eval {
namespace {

struct RetrievalOptions {
  CommonOptions common;
  uint32_t contexts = 3;
  uint32_t facts = 8;  ///< of each context
  uint32_t tokens = 3840;
};

/// A question, and the answer's tokens behind it.
struct Question {
  std::vector<int32_t> tokens;  ///< but the answer's last
  std::vector<int32_t> answer;
};

struct MethodCount {
  std::string method;
  double bits_per_element = 0;
  uint32_t right = 0, lost = 0;  ///< lost: right in FP16
  double kl = 0;                 ///< sum over the answers' tokens
  uint32_t tokens = 0;
};
constexpr const char kFp16[] = "FP16";

class RetrievalRun {
 public:
  explicit RetrievalRun(const RetrievalOptions& options) : options_(options) {}

  Result<std::vector<MethodCount>> Run() {
    constexpr uint32_t kQuestionTokensMax = 128;
    ModelRun::Options engine = {.model_path = options_.common.model,
                                .tokens = options_.tokens + kQuestionTokensMax,
                                .batch_tokens = 256,
                                .threads = options_.common.threads};
    KVTIER_ASSIGN(run_, ModelRun::Make(engine));
    engine.cache_type = llamacpp::CacheType::kQ8_0;
    if (IsWanted(options_.common, kQ8Cache)) {
      KVTIER_ASSIGN(q8_0_, ModelRun::Make(engine));
    }
    engine.cache_type = llamacpp::CacheType::kQ4_0;
    if (IsWanted(options_.common, kQ4Cache)) {
      KVTIER_ASSIGN(q4_0_, ModelRun::Make(engine));
    }
    KVTIER_ASSIGN(const Text text, LoadText(options_.common.texts.front()));
    KVTIER_ASSIGN(const std::vector<int32_t> filler, run_->Tokenize(text.contents));
    KVTIER_ASSIGN(const std::vector<size_t> starts,
                  WindowStarts(filler.size(), options_.tokens, options_.contexts));
    for (uint32_t i = 0; i < options_.contexts; ++i) {
      progress_.Step("context " + std::to_string(i + 1) + " of " + std::to_string(options_.contexts));
      KVTIER_TRY(RunContext(i, {filler.begin() + static_cast<ptrdiff_t>(starts[i]),
                                filler.begin() + static_cast<ptrdiff_t>(starts[i] + options_.tokens)}));
    }
    return std::move(counts_);
  }

 private:
  Status RunContext(uint32_t number, const std::vector<int32_t>& filler) {
    const std::vector<Fact> facts = MakeFacts(options_.facts, number);
    std::vector<std::vector<int32_t>> statements;
    std::vector<Question> questions;
    for (const Fact& fact : facts) {
      KVTIER_ASSIGN(statements.emplace_back(), run_->Tokenize(fact.statement));
      KVTIER_ASSIGN(questions.emplace_back(), Ask(fact));
    }
    const std::vector<int32_t> tokens = HideFacts(filler, statements, options_.tokens);
    progress_.Show(kFp16);
    KVTIER_TRY(run_->Prefill(tokens));
    KVTIER_ASSIGN(const ContextKv context, run_->SaveContext());
    std::vector<RightLogits> right;
    KVTIER_TRY(Answer(kFp16, 16, *run_, questions, right));
    for (const Method& method : AllMethods()) {
      if (!IsWanted(options_.common, method.name)) continue;
      progress_.Show(method.name);
      ContextKv stored = context;
      KVTIER_ASSIGN(const double bits, method.store(stored));
      KVTIER_TRY(run_->Load(stored));
      KVTIER_TRY(Answer(method.name, bits / context.elements(), *run_, questions, right));
    }
    for (const auto& [name, run] :
         {std::pair<const char*, ModelRun*>(kQ8Cache, q8_0_.get()), {kQ4Cache, q4_0_.get()}}) {
      if (run == nullptr) continue;
      progress_.Show(name);
      KVTIER_TRY(run->Prefill(tokens));
      KVTIER_ASSIGN(const std::vector<std::byte> state, run->Save());
      const double bits = 8.0 * static_cast<double>(state.size());
      KVTIER_TRY(Answer(name, bits / context.elements(), *run, questions, right));
    }
    return Status::Ok();
  }

  Result<Question> Ask(const Fact& fact) {
    KVTIER_ASSIGN(const std::vector<int32_t> asked, run_->Tokenize(fact.question));
    KVTIER_ASSIGN(std::vector<int32_t> all, run_->Tokenize(fact.question + fact.answer));
    if (all.size() <= asked.size() || !std::equal(asked.begin(), asked.end(), all.begin()))
      return Status(Code::kUnimplemented, "the model's tokens reach from a question into its answer");
    Question question;
    question.answer.assign(all.begin() + static_cast<ptrdiff_t>(asked.size()), all.end());
    all.pop_back();
    question.tokens = std::move(all);
    return question;
  }

  /// An answer is right when each of its tokens is the most probable one behind those before it. The first
  /// method's logits become the right ones.
  Status Answer(const std::string& method, double bits_per_element, ModelRun& run,
                const std::vector<Question>& questions, std::vector<RightLogits>& right) {
    MethodCount* count = nullptr;
    for (MethodCount& known : counts_)
      if (known.method == method) count = &known;
    if (count == nullptr)
      count = &counts_.emplace_back(MethodCount{.method = method, .bits_per_element = bits_per_element});
    const bool first = right.empty();
    if (first) fp16_right_.assign(questions.size(), false);
    for (size_t i = 0; i < questions.size(); ++i) {
      const Question& question = questions[i];
      KVTIER_ASSIGN(const std::vector<float> logits,
                    run.Continue(question.tokens, static_cast<uint32_t>(question.answer.size())));
      if (first) right.emplace_back(logits, question.answer);
      bool all = true;
      for (const TokenScore& token : right[i].Score(logits)) {
        all = all && token.hit;
        count->kl += token.kl;
        ++count->tokens;
      }
      if (first) fp16_right_[i] = all;
      count->right += all ? 1 : 0;
      count->lost += fp16_right_[i] && !all ? 1 : 0;
    }
    return Status::Ok();
  }

  const RetrievalOptions& options_;
  Progress progress_;
  std::unique_ptr<ModelRun> run_, q8_0_, q4_0_;
  std::vector<bool> fp16_right_;  ///< of the context's questions
  std::vector<MethodCount> counts_;
};

nlohmann::ordered_json ToJson(const RetrievalOptions& options, const std::vector<MethodCount>& counts) {
  nlohmann::ordered_json json = {{"evaluation", "retrieval"},
                                 {"model", std::filesystem::path(options.common.model).filename()},
                                 {"context", options.tokens},
                                 {"questions", options.contexts * options.facts},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const MethodCount& count : counts) {
    json["rows"].push_back({{"method", count.method},
                            {"bits_per_element", count.bits_per_element},
                            {"right", count.right},
                            {"lost", count.lost},
                            {"kl", count.kl / count.tokens}});
  }
  return json;
}

int Run(const RetrievalOptions& options) {
  const Result<std::vector<MethodCount>> counts = RetrievalRun(options).Run();
  if (!counts.ok()) {
    std::fprintf(stderr, "kvtier-eval: %s\n", counts.status().ToString().c_str());
    return 1;
  }
  std::printf("%s: %u facts in each of %u contexts of %u tokens; answers from what comes back\n",
              std::filesystem::path(options.common.model).filename().c_str(), options.facts, options.contexts,
              options.tokens);
  std::printf("%-22s %6s %10s %22s %14s\n", "method", "b/e", "right", "lost of FP16's right", "KL per token");
  bool exact = true;
  for (const MethodCount& count : *counts) {
    std::printf("%-22s %6.2f %4u of %2u %22u %14.5f\n", count.method.c_str(), count.bits_per_element,
                count.right, options.contexts * options.facts, count.lost, count.kl / count.tokens);
    if (count.method == kExactMethod) exact = count.kl == 0 && count.lost == 0;
  }
  if (!exact) std::printf("error: %s is not exact\n", kExactMethod);
  const bool written = WriteJson(options.common, [&] { return ToJson(options, *counts).dump(1); });
  return exact && written ? 0 : 1;
}

}  // namespace

void AddRetrieval(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<RetrievalOptions>();
  const auto quick = std::make_shared<bool>(false);
  options->common.model = CacheFolder() + "/models/Qwen2.5-Coder-0.5B-Instruct.gguf";
  options->common.texts = {"prose=" + CacheFolder() + "/texts/jargon.txt"};
  CLI::App* command =
      app.add_subcommand("retrieval", "Facts hidden in a long context, asked for after every precision");
  AddCommon(*command, options->common, MethodNames());
  command->add_option("--contexts", options->contexts)->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_option("--facts", options->facts, "Of each context")
      ->check(CLI::Range(1u, kFactsMax))
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Of each context")
      ->check(CLI::Range(512, 65536))
      ->capture_default_str();
  command->add_flag("--quick", *quick, "One context of 1,024 tokens with 4 facts");
  command->callback([options, quick, &exit_status] {
    if (*quick) options->contexts = 1, options->tokens = 1024, options->facts = 4;
    exit_status = Run(*options);
  });
}

}  // namespace kvtier::eval
