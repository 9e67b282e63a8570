#include "tests/bench/codecs.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "kernels/simd/dispatch.h"

namespace kvtier::bench {
namespace {

constexpr Shape kBoundShape = {8, 128, 128};

/// One table group: what is measured in the same rounds.
struct Group {
  const Codec& codec;
  DType source;
  Shape shape;
  Residency residency;
  uint32_t threads;
};

/// Heads of a layer whose source and decoded form fit into half of the cache; at least one.
uint16_t HeadsInCache(const Shape& shape) {
  const uint64_t head_bytes = uint64_t{2} * 2 * shape.dim * shape.tokens;
  const uint64_t fit = PrivateCacheBytes() / 2 / (2 * head_bytes);
  return static_cast<uint16_t>(std::clamp<uint64_t>(fit, 1, shape.heads));
}

/// Layers of a group's working set: 256 MB of FP16 in DRAM, or for each thread what its cache holds.
uint32_t LayersOf(const Group& group, const BlockShape& shape) {
  const uint64_t layer_bytes = RawLayerBytes(shape) / DTypeBytes(shape.dtype) * 2;
  if (group.residency == Residency::kDram)
    return static_cast<uint32_t>(kDramWorkingSetBytes / layer_bytes) / group.threads * group.threads;
  const uint64_t fit = std::max<uint64_t>(PrivateCacheBytes() / 2 / (2 * layer_bytes), 1);
  return static_cast<uint32_t>(fit) * group.threads;
}

/// In cache a pass is over before a second thread has started, so a share is done many times.
uint32_t TimesAPass(const Group& group) {
  return group.residency == Residency::kCache && group.threads > 1 ? 64 : 1;
}

/// All threads at once do their shares.
Alternative Pass(const std::string& name, const Group& group, const std::function<void(uint32_t)>& do_share) {
  return {name, [do_share, threads = group.threads, times = TimesAPass(group)] {
            RunShares(threads, [&](uint32_t share) {
              for (uint32_t i = 0; i < times; ++i) do_share(share);
            });
          }};
}

bool Matches(const std::string& name, const std::string& words) {
  std::istringstream stream(words);
  for (std::string word; stream >> word;)
    if (name.find(word) == std::string::npos) return false;
  return true;
}

std::string LineName(const CodecLine& line) {
  return line.codec + " " + line.operation + " " + line.shape + " " + line.residency +
         " threads=" + std::to_string(line.threads);
}

/// What a group's alternatives are: first the yardsticks, then one a line.
struct Plan {
  std::vector<CodecLine> lines;
  std::vector<Operation> operations;
};

Plan PlanOf(const Group& group, const std::string& only) {
  Plan plan;
  for (const Operation& operation : OperationsOf(group.codec, group.source)) {
    CodecLine line = {.codec = std::string(group.codec.name),
                      .operation = OperationName(operation),
                      .shape = ShapeName(group.shape),
                      .residency = group.residency == Residency::kDram ? "DRAM" : "cache",
                      .threads = group.threads};
    const bool bound =
        group.threads == 1 && group.shape.heads == kBoundShape.heads && group.shape.dim == kBoundShape.dim;
    if (bound) line.bound = BoundOf(group.codec, operation, group.residency);
    if (!Matches(LineName(line), only)) continue;
    plan.lines.push_back(std::move(line));
    plan.operations.push_back(operation);
  }
  return plan;
}

RoundLimits LimitsOf(const CodecsOptions& options) {
  if (options.quick) return {.rounds = 9, .seconds = 1.5, .rounds_min = 3};
  return {.rounds = 21, .seconds = 6, .rounds_min = 5};
}

/// memcpy and a non-temporal copy of FP16 bytes, then of FP32 bytes.
constexpr size_t kYardsticks = 4;

std::vector<Alternative> Yardsticks(const Group& group, CodecWork& work) {
  std::vector<Alternative> yardsticks;
  const uint32_t count = work.layers() / group.threads;
  for (const Destination destination : {Destination::kContiguous, Destination::kFp32}) {
    yardsticks.push_back(Pass("memcpy", group, [&work, destination, count](uint32_t share) {
      work.MemCopy({.first = share * count, .count = count}, destination);
    }));
    yardsticks.push_back(Pass("stream", group, [&work, destination, count](uint32_t share) {
      work.StreamCopy({.first = share * count, .count = count}, destination);
    }));
  }
  return yardsticks;
}

void FillLine(CodecLine& line, const Operation& operation, const Interleaved& times, size_t index,
              const Group& group, const CodecWork& work) {
  const bool wide = operation.work == Work::kDecode && operation.destination == Destination::kFp32;
  const size_t copies[] = {wide ? 2u : 0u, wide ? 3u : 1u};
  line.gbps = static_cast<double>(work.fp16_bytes() * TimesAPass(group)) / times.Seconds(index) / 1e9;
  line.to_memcpy = times.SpeedRatio(index, copies[0]);
  line.to_best = line.to_memcpy;
  if (group.residency == Residency::kDram) {
    line.to_stream = times.SpeedRatio(index, copies[1]);
    line.to_best = times.SpeedRatioToBest(index, copies);
  }
}

Status MeasureGroup(const Group& group, const CodecsOptions& options, std::vector<CodecLine>& lines) {
  Plan plan = PlanOf(group, options.only);
  if (plan.lines.empty()) return Status::Ok();
  const bool cached = group.residency == Residency::kCache;
  Shape fitting = group.shape;
  if (cached) fitting.heads = HeadsInCache(fitting);
  const BlockShape shape = LayerShapeOf(group.codec, fitting, group.source);
  KVTIER_ASSIGN(CodecWork work, CodecWork::Make(group.codec, shape, LayersOf(group, shape), options.k_mean));
  std::fprintf(stderr, "codecs: %s\n", LineName(plan.lines[0]).c_str());

  const Stores stores = cached ? Stores::kCached : Stores::kStreaming;
  std::vector<Alternative> alternatives = Yardsticks(group, work);
  for (const Operation& operation : plan.operations)
    alternatives.push_back(Pass(OperationName(operation), group, [&](uint32_t share) {
      for (uint32_t layer = share; layer < work.layers(); layer += group.threads)
        RunOnLayer(work, operation, layer, stores);
    }));
  const Interleaved times = Interleaved::Run(alternatives, LimitsOf(options));

  size_t plain = 0;
  for (size_t i = 0; i < plan.lines.size(); ++i) {
    const size_t index = kYardsticks + i;
    FillLine(plan.lines[i], plan.operations[i], times, index, group, work);
    const Operation& operation = plan.operations[i];
    if (operation.work == Work::kDecode && operation.destination == Destination::kContiguous) plain = index;
    // A copy has nothing to hide a checksum behind: no share is asked of it.
    const bool is_copy = group.codec.id == CodecId::kRaw16 || group.codec.id == CodecId::kRaw8;
    if (operation.work == Work::kDecodeAndVerify && plain != 0 && !is_copy)
      plan.lines[i].checksum_share = 1 / times.SpeedRatio(index, plain) - 1;
  }
  std::ranges::move(plan.lines, std::back_inserter(lines));
  return Status::Ok();
}

}  // namespace

bool CodecLine::Holds() const {
  if (checksum_share) return *checksum_share <= kChecksumShareMax;
  if (!bound) return true;
  return to_memcpy >= bound->ratio || (bound->gbps_instead > 0 && gbps >= bound->gbps_instead);
}

Result<std::vector<CodecLine>> MeasureCodecs(const CodecsOptions& options) {
  std::vector<CodecLine> lines;
  for (const Shape& shape : std::span(kCodecShapes).first(options.quick ? 1 : std::size(kCodecShapes)))
    for (const Codec* codec : AllCodecs())
      for (const DType source : SourcesOf(*codec))
        for (const Residency residency : {Residency::kDram, Residency::kCache})
          for (const uint32_t threads : {1u, 2u})
            KVTIER_TRY(MeasureGroup({*codec, source, shape, residency, threads}, options, lines));
  if (lines.empty()) return Status(Code::kNotFound, "no line has all words of \"" + options.only + "\"");
  return lines;
}

}  // namespace kvtier::bench
