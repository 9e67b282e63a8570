// Runs every codec operation once, each inside kvtier_measured_operation: instructions.py counts the
// instructions there. Says what it runs, a line each: name, shape, SIMD level, elements; separated by tabs.
#include <cstdio>
#include <string>

#include "kernels/simd/dispatch.h"
#include "tests/bench/codec_operations.h"
#include "tests/bench/codec_work.h"

namespace kvtier::bench {
namespace {

/// A shape of full tiles and groups, and a small one.
constexpr Shape kShapes[] = {{8, 128, 128}, {3, 64, 64}};

}  // namespace

/// Found by its name, and never inlined: where counting begins and ends.
extern "C" [[gnu::noinline]] void kvtier_measured_operation(CodecWork& work, const Operation& operation) {
  RunOnLayer(work, operation, 0, Stores::kCached);
}

namespace {

Status RunAll(const Codec& codec, const Shape& shape) {
  const BlockShape layer = LayerShapeOf(codec, shape);
  const uint64_t elements = uint64_t{layer.kv_heads} * layer.tokens * (layer.k_dim + layer.v_dim);
  KVTIER_ASSIGN(CodecWork work, CodecWork::Make(codec, layer, 1));
  for (const Operation& operation : OperationsOf(codec)) {
    RunOnLayer(work, operation, 0, Stores::kCached);  // what is done once is done now
    kvtier_measured_operation(work, operation);
    std::printf("%s %s\t%s\t%s\t%llu\n", std::string(codec.name).c_str(), OperationName(operation).c_str(),
                ShapeName(shape).c_str(), std::string(SimdLevelName(CurrentSimdLevel())).c_str(),
                static_cast<unsigned long long>(elements));
  }
  return Status::Ok();
}

}  // namespace
}  // namespace kvtier::bench

int main() {
  using namespace kvtier;
  using namespace kvtier::bench;
  for (const Codec* codec : AllCodecs()) {
    for (const Shape& shape : kShapes) {
      if (const Status status = RunAll(*codec, shape); !status.ok()) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return 1;
      }
    }
  }
  return 0;
}
