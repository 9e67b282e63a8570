#include "tests/bench/attention.h"

#include <cstdio>

#include "codecs/codec.h"
#include "kernels/simd/dispatch.h"
#include "tests/bench/attention_work.h"
#include "tests/bench/interleave.h"

namespace kvtier::bench {
namespace {

constexpr Shape kShape = kAttentionShape;
constexpr uint32_t kContextTokens = 32 << 10, kQuickContextTokens = 8 << 10;

double BoundOf(const Codec& codec) {
  if (CurrentSimdLevel() != SimdLevel::kAvx512Vnni) return 0;
  if (codec.id == CodecId::kKv4p) return 1.4;
  return codec.id == CodecId::kKv2p ? 1.6 : 0;
}

void MeasureGroup(const std::vector<const Codec*>& codecs, const std::vector<AttentionContext>& contexts,
                  uint32_t group, const AttentionOptions& options, std::vector<AttentionLine>& lines) {
  DecodeStep step(group);
  std::vector<Alternative> alternatives;
  for (size_t i = 0; i < codecs.size(); ++i)
    alternatives.push_back(
        {std::string(codecs[i]->name), [&step, &contexts, i] { step.Attend(contexts[i]); }});
  const RoundLimits limits = options.quick ? RoundLimits{.rounds = 9, .seconds = 1.5, .rounds_min = 3}
                                           : RoundLimits{.rounds = 21, .seconds = 6, .rounds_min = 5};
  const Interleaved times = Interleaved::Run(alternatives, limits);
  for (size_t i = 0; i < codecs.size(); ++i) {
    const double seconds = times.Seconds(i);
    lines.push_back({.codec = std::string(codecs[i]->name),
                     .group = group,
                     .tokens_per_second = (options.quick ? kQuickContextTokens : kContextTokens) / seconds,
                     .gbps = static_cast<double>(contexts[i].bytes()) / seconds / 1e9,
                     .to_raw16 = times.SpeedRatio(i, 0),
                     .bound = BoundOf(*codecs[i])});
  }
}

}  // namespace

Result<std::vector<AttentionLine>> MeasureAttention(const AttentionOptions& options) {
  for (const SimdLevel level : AvailableSimdLevels())
    if (SimdLevelName(level) == options.simd) LimitSimd(level);
  std::vector<const Codec*> codecs;
  std::vector<AttentionContext> contexts;
  for (const Codec* codec : AllCodecs()) {
    if (codec->id != CodecId::kRaw16 && !options.codec.empty() && codec->name != options.codec) continue;
    KVTIER_ASSIGN(AttentionContext context,
                  AttentionContext::Make(*codec, options.quick ? kQuickContextTokens : kContextTokens));
    codecs.push_back(codec);
    contexts.push_back(std::move(context));
  }
  std::vector<AttentionLine> lines;
  for (const uint32_t group : kQueryGroups) MeasureGroup(codecs, contexts, group, options, lines);
  return lines;
}

void PrintAttentionTable(const std::vector<AttentionLine>& lines) {
  std::printf("decode attention, one core, %u KV heads x %u, blocks of %u tokens, %s\n", kShape.heads,
              kShape.dim, kShape.tokens, std::string(SimdLevelName(CurrentSimdLevel())).c_str());
  std::printf("%-8s %14s %16s %8s %10s %7s\n", "codec", "queries per KV", "context tokens/s", "GB/s",
              "to raw16", "bound");
  for (const AttentionLine& line : lines) {
    std::printf("%-8s %14u %16.0f %8.2f %9.2fx", line.codec.c_str(), line.group, line.tokens_per_second,
                line.gbps, line.to_raw16);
    line.bound > 0 ? std::printf(" %6.2fx %s\n", line.bound, line.Holds() ? "ok" : "MISSED")
                   : std::printf("\n");
  }
}

void PrintAttentionJson(const std::vector<AttentionLine>& lines) {
  std::printf("{\"benchmark\": \"attention\", \"simd\": \"%s\", \"lines\": [",
              std::string(SimdLevelName(CurrentSimdLevel())).c_str());
  for (size_t i = 0; i < lines.size(); ++i) {
    const AttentionLine& line = lines[i];
    std::printf(
        "%s{\"codec\": \"%s\", \"queries_per_kv_head\": %u, \"tokens_per_second\": %.0f, \"gbps\": %.3f, "
        "\"to_raw16\": %.3f}",
        i == 0 ? "" : ", ", line.codec.c_str(), line.group, line.tokens_per_second, line.gbps, line.to_raw16);
  }
  std::printf("]}\n");
}

}  // namespace kvtier::bench
