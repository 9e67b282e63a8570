#include "codecs/plane_family.h"
#include "codecs/rows.h"

namespace kvtier {
namespace {

// K at four bits, V at two: base and K tail.
constexpr uint8_t kPlanes = kPlaneKLow;

LayerError Encode(const BlockShape& shape, const LayerSource& source, const LayerParts& out) {
  return EncodePlanes(shape, kPlanes, source, out);
}

}  // namespace

constinit const Codec kKv42Codec = {.id = CodecId::kKv42,
                                    .precision = Precision::kK4V2,
                                    .name = "kv42",
                                    .planes = kPlanes,
                                    .supports = SupportsPlaneFamily,
                                    .encode = Encode,
                                    .decode = DecodePlanes,
                                    .attend = AttendToPlanes};

}  // namespace kvtier
