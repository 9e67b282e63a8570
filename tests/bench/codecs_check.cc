#include "kernels/simd/dispatch.h"
#include "tests/bench/codecs.h"
#include "tiers/crc32c.h"

namespace kvtier::bench {
namespace {

/// What is kept while levels are tried: the level from before.
class LevelGuard {
 public:
  LevelGuard() = default;
  LevelGuard(const LevelGuard&) = delete;
  LevelGuard& operator=(const LevelGuard&) = delete;
  ~LevelGuard() { LimitSimd(before_); }

 private:
  SimdLevel before_ = CurrentSimdLevel();
};

/// The checksum of everything that the operation writes at `level`.
uint32_t Written(CodecWork& work, const Operation& operation, Stores stores, SimdLevel level) {
  LimitSimd(level);
  work.ClearTargets();
  for (uint32_t layer = 0; layer < work.layers(); ++layer) RunOnLayer(work, operation, layer, stores);
  return ContinueCrc32c(Crc32c(work.decoded()), work.encoded());
}

Status CheckOperation(CodecWork& work, const Operation& operation, const std::string& shape) {
  const uint32_t expected = Written(work, operation, Stores::kCached, SimdLevel::kPortable);
  for (const SimdLevel level : AvailableSimdLevels()) {
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      if (Written(work, operation, stores, level) == expected) continue;
      return Status(Code::kInternal, std::string(work.codec().name) + ", " + OperationName(operation) + ", " +
                                         shape + ": other bytes at " + std::string(SimdLevelName(level)));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckCodecs() {
  constexpr uint32_t kLayers = 2;
  constexpr Shape kShapes[] = {{2, 128, 128}, {3, 64, 64}};
  const LevelGuard guard;
  for (const Shape& shape : kShapes) {
    for (const Codec* codec : AllCodecs()) {
      for (const DType source : SourcesOf(*codec)) {
        KVTIER_ASSIGN(CodecWork work, CodecWork::Make(*codec, LayerShapeOf(*codec, shape, source), kLayers));
        for (const Operation& operation : OperationsOf(*codec, source))
          KVTIER_TRY(CheckOperation(work, operation, ShapeName(shape)));
      }
    }
  }
  return Status::Ok();
}

}  // namespace kvtier::bench
