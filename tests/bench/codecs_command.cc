#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "kernels/simd/dispatch.h"
#include "tests/bench/codecs.h"
#include "tests/bench/commands.h"

namespace kvtier::bench {
namespace {

std::vector<std::string> LevelNames() {
  std::vector<std::string> names;
  for (const SimdLevel level : AvailableSimdLevels()) names.emplace_back(SimdLevelName(level));
  return names;
}

int RunCheck() {
  const Status status = CheckCodecs();
  std::printf("%s\n", status.ok() ? "every level writes the bytes of the portable kernels"
                                  : status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

int RunCodecs(const CodecsOptions& options) {
  for (const SimdLevel level : AvailableSimdLevels())
    if (SimdLevelName(level) == options.simd) LimitSimd(level);
  if (options.check) return RunCheck();
  const Result<std::vector<CodecLine>> lines = MeasureCodecs(options);
  if (!lines.ok()) {
    std::fprintf(stderr, "codecs: %s\n", lines.status().ToString().c_str());
    return 1;
  }
  options.json ? PrintCodecJson(*lines) : PrintCodecTable(*lines);
  return 0;
}

}  // namespace

void AddCodecs(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<CodecsOptions>();
  CLI::App* codecs =
      app.add_subcommand("codecs", "Every codec beside memcpy; exits with 0 whatever it finds");
  codecs->add_flag("--quick", options->quick, "The usual shape alone, fewer rounds");
  codecs->add_flag("--json", options->json, "One JSON object instead of the table");
  codecs->add_flag("--check", options->check, "Measure nothing: compare every SIMD level's bytes");
  codecs->add_option("--simd", options->simd, "Use no wider vectors than this")
      ->check(CLI::IsMember(LevelNames()));
  codecs->add_option("--k-mean", options->k_mean, "How far from zero K lies, in standard deviations")
      ->check(CLI::Range(-1000.0, 1000.0));
  codecs->add_option("--only", options->only,
                     "Words that a line must hold, such as \"kv4p decode DRAM threads=1\"");
  codecs->callback([options, &exit_status] { exit_status = RunCodecs(*options); });
}

}  // namespace kvtier::bench
