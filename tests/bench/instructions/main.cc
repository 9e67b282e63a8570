// Runs every codec operation once, each inside kvtier_measured_operation: instructions.py counts the
// instructions there. Says what it runs, a line each: name, shape, SIMD level, elements; separated by tabs.
#include <cstdio>
#include <functional>
#include <string>

#include "kernels/simd/dispatch.h"
#include "tests/bench/attention_work.h"
#include "tests/bench/codec_operations.h"
#include "tests/bench/codec_work.h"

/// Found by its name, and never inlined: where counting begins and ends.
extern "C" [[gnu::noinline]] void kvtier_measured_operation(const std::function<void()>& operation) {
  operation();
}

namespace kvtier::bench {
namespace {

/// A shape of full tiles and groups, and a small one.
constexpr Shape kShapes[] = {{8, 128, 128}, {3, 64, 64}};

uint64_t Elements(const Shape& shape) {
  return uint64_t{2} * shape.heads * shape.tokens * shape.dim;
}

void Measure(const std::string& name, const Shape& shape, const std::function<void()>& operation) {
  operation();  // what is done once is done now
  kvtier_measured_operation(operation);
  std::printf("%s\t%s\t%s\t%llu\n", name.c_str(), ShapeName(shape).c_str(),
              std::string(SimdLevelName(CurrentSimdLevel())).c_str(),
              static_cast<unsigned long long>(Elements(shape)));
}

Status MeasureCodec(const Codec& codec) {
  const std::string name(codec.name);
  for (const Shape& shape : kShapes) {
    for (const DType source : SourcesOf(codec)) {
      KVTIER_ASSIGN(CodecWork work, CodecWork::Make(codec, LayerShapeOf(codec, shape, source), 1));
      for (const Operation& operation : OperationsOf(codec, source))
        Measure(name + " " + OperationName(operation), shape,
                [&] { RunOnLayer(work, operation, 0, Stores::kCached); });
    }
  }
  KVTIER_ASSIGN(const AttentionContext block, AttentionContext::Make(codec, kAttentionShape.tokens));
  for (const uint32_t group : kQueryGroups) {
    DecodeStep step(group);
    Measure(name + " attend, " + std::to_string(group) + " to a head", kAttentionShape,
            [&] { step.Attend(block); });
  }
  return Status::Ok();
}

}  // namespace
}  // namespace kvtier::bench

int main() {
  for (const kvtier::Codec* codec : kvtier::AllCodecs()) {
    if (const kvtier::Status status = kvtier::bench::MeasureCodec(*codec); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
