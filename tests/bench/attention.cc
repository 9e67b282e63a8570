#include "tests/bench/attention.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <span>

#include "codecs/codec.h"
#include "kernels/numerics.h"
#include "kernels/simd/attend_simd.h"
#include "kernels/simd/dispatch.h"
#include "tests/bench/codec_work.h"
#include "tests/bench/interleave.h"
#include "tiers/base/aligned_buffer.h"

namespace kvtier::bench {
namespace {

constexpr Shape kShape = {8, 128, 128};
constexpr uint32_t kContextTokens = 32 << 10, kQuickContextTokens = 8 << 10;
constexpr uint32_t kGroups[] = {1, 4, 8};
constexpr uint32_t kSeed = 1;

double BoundOf(const Codec& codec) {
  if (CurrentSimdLevel() != SimdLevel::kAvx512Vnni) return 0;
  if (codec.id == CodecId::kKv4p) return 1.4;
  return codec.id == CodecId::kKv2p ? 1.6 : 0;
}

/// A context as blocks of one codec, each block's parts as they lie in an image.
class Context {
 public:
  static Result<Context> Make(const Codec& codec, uint32_t tokens) {
    Context context;
    context.codec_ = &codec;
    context.shape_ = LayerShapeOf(codec, kShape);
    context.planes_ = EncodedPlanes(codec, context.shape_);
    for (int region = 0; region < kRegions; ++region)
      context.block_bytes_ +=
          PartBytes(codec.id, context.shape_, context.planes_, static_cast<Region>(region));
    context.blocks_ = tokens / kShape.tokens;
    KVTIER_ASSIGN(context.bytes_, context.memory_.Reserve(context.blocks_ * context.block_bytes_));
    context.Fill();
    return context;
  }
  uint64_t bytes() const { return blocks_ * block_bytes_; }

  /// Attention of one decode step over the whole context.
  void Attend(const AttentionQuery& query, const AttentionPartial& part, const AttentionPartial& all) const {
    for (uint32_t h = 0; h < query.query_heads; ++h) {
      all.m[h] = -INFINITY;
      all.l[h] = 0;
    }
    for (uint32_t block = 0; block < blocks_; ++block) {
      ConstLayerParts parts;
      const LayerParts at = PartsOf(block);
      for (int region = 0; region < kRegions; ++region) parts.part[region] = at.part[region];
      codec_->attend(shape_, planes_, parts, query, part);
      MergeAttentionSimd(part, query.query_heads, kShape.dim, all);
    }
  }

 private:
  Context() = default;

  LayerParts PartsOf(uint32_t block) const {
    LayerParts parts;
    std::byte* at = bytes_.data() + block * block_bytes_;
    for (int region = 0; region < kRegions; ++region) {
      const uint64_t bytes = PartBytes(codec_->id, shape_, planes_, static_cast<Region>(region));
      parts.part[region] = {at, bytes};
      at += bytes;
    }
    return parts;
  }
  /// One encoded block, copied.
  void Fill() {
    std::vector<std::byte> raw(RawLayerBytes(shape_));
    std::mt19937 random(kSeed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i + 2 <= raw.size(); i += 2) {
      const uint16_t half = Fp16FromFp32(normal(random));
      // FP8: codes of moderate size, none of them NaN.
      Store16(raw.data() + i, DTypeBytes(shape_.dtype) == 1 ? half & 0xb7b7 : half);
    }
    codec_->encode(shape_, {.raw = raw}, PartsOf(0));
    for (uint32_t block = 1; block < blocks_; ++block)
      std::memcpy(bytes_.data() + block * block_bytes_, bytes_.data(), block_bytes_);
  }

  const Codec* codec_ = nullptr;
  BlockShape shape_;
  uint8_t planes_ = 0;
  uint32_t blocks_ = 0;
  uint64_t block_bytes_ = 0;
  AlignedBuffer memory_;
  std::span<std::byte> bytes_;
};

/// Queries of one group size and room for what comes out.
struct Step {
  explicit Step(uint32_t group) : group(group), heads(group * kShape.heads) {
    std::mt19937 random(kSeed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < size_t{heads} * kShape.dim; ++i) q.push_back(normal(random));
    for (std::vector<float>* o : {&part_o, &all_o}) o->resize(size_t{heads} * kShape.dim);
    for (std::vector<float>* x : {&part_m, &part_l, &all_m, &all_l}) x->resize(heads);
  }
  void Attend(const Context& context) {
    context.Attend({.q = q.data(), .query_heads = heads, .scale = 0.088f},
                   {.o = part_o.data(), .m = part_m.data(), .l = part_l.data()},
                   {.o = all_o.data(), .m = all_m.data(), .l = all_l.data()});
  }

  uint32_t group, heads;
  std::vector<float> q, part_o, part_m, part_l, all_o, all_m, all_l;
};

void MeasureGroup(const std::vector<const Codec*>& codecs, const std::vector<Context>& contexts,
                  uint32_t group, const AttentionOptions& options, std::vector<AttentionLine>& lines) {
  Step step(group);
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
  std::vector<Context> contexts;
  for (const Codec* codec : AllCodecs()) {
    if (codec->id != CodecId::kRaw16 && !options.codec.empty() && codec->name != options.codec) continue;
    KVTIER_ASSIGN(Context context,
                  Context::Make(*codec, options.quick ? kQuickContextTokens : kContextTokens));
    codecs.push_back(codec);
    contexts.push_back(std::move(context));
  }
  std::vector<AttentionLine> lines;
  for (const uint32_t group : kGroups) MeasureGroup(codecs, contexts, group, options, lines);
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
