#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "codecs/codec.h"
#include "kernels/simd/dispatch.h"
#include "tests/bench/attention.h"
#include "tests/bench/commands.h"

namespace kvtier::bench {
namespace {

int RunAttention(const AttentionOptions& options) {
  const Result<std::vector<AttentionLine>> lines = MeasureAttention(options);
  if (!lines.ok()) {
    std::fprintf(stderr, "attention: %s\n", lines.status().ToString().c_str());
    return 1;
  }
  options.json ? PrintAttentionJson(*lines) : PrintAttentionTable(*lines);
  return 0;
}

}  // namespace

void AddAttention(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<AttentionOptions>();
  CLI::App* attention = app.add_subcommand(
      "attention", "Decode attention on encoded blocks beside FP16; exits with 0 whatever it finds");
  attention->add_flag("--quick", options->quick, "A shorter context, fewer rounds");
  attention->add_flag("--json", options->json, "One JSON object instead of the table");
  std::vector<std::string> levels, codecs;
  for (const SimdLevel level : AvailableSimdLevels()) levels.emplace_back(SimdLevelName(level));
  for (const Codec* codec : AllCodecs()) codecs.emplace_back(codec->name);
  attention->add_option("--simd", options->simd, "Use no wider vectors than this")
      ->check(CLI::IsMember(levels));
  attention->add_option("--codec", options->codec, "This one alone beside raw16")
      ->check(CLI::IsMember(codecs));
  attention->callback([options, &exit_status] { exit_status = RunAttention(*options); });
}

}  // namespace kvtier::bench
