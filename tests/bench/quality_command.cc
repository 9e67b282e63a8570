#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "kernels/simd/dispatch.h"
#include "tests/bench/commands.h"
#include "tests/quality/attend_score.h"
#include "tests/quality/score.h"

namespace kvtier::bench {
namespace {

using quality::LayerScore;
using quality::Score;

struct QualityOptions {
  bool json = false;
  std::string data = "tests/data";
};

struct FixtureScores {
  std::string fixture;
  std::vector<Score> scores;
  std::vector<quality::AttendScore> attention;  ///< on codes, one a codec
};

Result<FixtureScores> ScoresOf(const std::string& folder, const std::string& name) {
  KVTIER_ASSIGN(const Fixture fixture, Fixture::Load(folder + "/" + name));
  const quality::Judge judge(fixture, 1);
  FixtureScores result = {.fixture = name, .scores = {}, .attention = {}};
  for (const auto& methods : {quality::KvtierMethods(), quality::ReferenceMethods()}) {
    for (const quality::Method& method : methods) {
      KVTIER_ASSIGN(Score score, judge.Try(method));
      result.scores.push_back(std::move(score));
    }
  }
  for (const Codec* codec : AllCodecs()) {
    KVTIER_ASSIGN(quality::AttendScore score, quality::ScoreAttend(*codec, fixture, 1));
    result.attention.push_back(std::move(score));
  }
  return result;
}

void PrintTable(const FixtureScores& result) {
  std::printf("\n%s: relative errors; of the attention output by layer, and its worst head and cosine\n",
              result.fixture.c_str());
  std::printf("%-16s %6s %8s %8s %8s |%8s%8s%8s%8s | %8s %9s %8s\n", "method", "b/e", "K", "V", "attn",
              "layer 1", "2", "3", "4", "head", "1-cos", "cos min");
  for (const Score& score : result.scores) {
    std::printf("%-16s %6.2f %8.5f %8.5f %8.5f |", score.method.c_str(), score.bits_per_element,
                score.KError(), score.VError(), score.AttentionError());
    double worst_head = 0, cosine_min = 1;
    for (const LayerScore& layer : score.layers) {
      std::printf("%8.4f", layer.attention_error);
      worst_head = std::max(worst_head, layer.attention_error_head);
      cosine_min = std::min(cosine_min, layer.cosine_min);
    }
    std::printf(" | %8.4f %9.2e %8.4f\n", worst_head, score.CosineDistance(), cosine_min);
  }
}

void PrintAttention(const FixtureScores& result) {
  std::printf("\n%s: attention on codes (%s), blocks of 64 tokens and the newest tokens FP16\n",
              result.fixture.c_str(), std::string(SimdLevelName(CurrentSimdLevel())).c_str());
  std::printf("%-16s %12s %12s %12s\n", "codec", "decoded", "on codes", "distance");
  for (const quality::AttendScore& score : result.attention) {
    const quality::AttendLayerScore all = score.Overall();
    std::printf("%-16s %12.6f %12.6f %12.6f\n", score.codec.c_str(), all.decoded, all.attended, all.added);
  }
}

void PrintJson(const std::vector<FixtureScores>& results) {
  std::printf("{\"benchmark\": \"quality\", \"scores\": [");
  const char* comma = "";
  for (const FixtureScores& result : results) {
    for (const Score& score : result.scores) {
      std::printf(
          "%s\n  {\"fixture\": \"%s\", \"method\": \"%s\", \"bits_per_element\": %.4f, \"k_error\": %.6f, "
          "\"v_error\": %.6f, \"attention_error\": %.6f, \"layers\": [",
          comma, result.fixture.c_str(), score.method.c_str(), score.bits_per_element, score.KError(),
          score.VError(), score.AttentionError());
      comma = "";
      for (const LayerScore& layer : score.layers) {
        std::printf(
            "%s{\"k_error\": %.6f, \"v_error\": %.6f, \"attention_error\": %.6f, "
            "\"attention_error_head\": %.6f, \"cosine\": %.8f, \"cosine_min\": %.8f}",
            comma, layer.k_error, layer.v_error, layer.attention_error, layer.attention_error_head,
            layer.cosine, layer.cosine_min);
        comma = ", ";
      }
      std::printf("]}");
      comma = ",";
    }
  }
  std::printf("], \"attention_on_codes\": [");
  comma = "";
  for (const FixtureScores& result : results) {
    for (const quality::AttendScore& score : result.attention) {
      const quality::AttendLayerScore all = score.Overall();
      std::printf(
          "%s\n  {\"fixture\": \"%s\", \"codec\": \"%s\", \"decoded\": %.6f, \"attended\": %.6f, \"added\": "
          "%.6f}",
          comma, result.fixture.c_str(), score.codec.c_str(), all.decoded, all.attended, all.added);
      comma = ",";
    }
  }
  std::printf("]}\n");
}

int RunQuality(const QualityOptions& options) {
  std::vector<FixtureScores> results;
  for (const char* name : {"smollm2-135m", "qwen2.5-coder-0.5b"}) {
    Result<FixtureScores> result = ScoresOf(options.data, name);
    if (!result.ok()) {
      std::fprintf(stderr, "quality: %s\n", result.status().ToString().c_str());
      return 1;
    }
    results.push_back(std::move(*result));
  }
  if (options.json) {
    PrintJson(results);
  } else {
    for (const FixtureScores& result : results) {
      PrintTable(result);
      PrintAttention(result);
    }
  }
  return 0;
}

}  // namespace

void AddQuality(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<QualityOptions>();
  CLI::App* quality = app.add_subcommand(
      "quality", "Errors of every codec and of other formats on real keys, values and queries");
  quality->add_flag("--json", options->json, "One JSON object instead of the tables");
  quality->add_option("--data", options->data, "The folder tests/data");
  quality->callback([options, &exit_status] { exit_status = RunQuality(*options); });
}

}  // namespace kvtier::bench
