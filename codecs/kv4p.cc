#include "codecs/plane_family.h"
#include "codecs/rows.h"

namespace kvtier {
namespace {

// K and V at four bits: base and both tails.
constexpr uint8_t kPlanes = kPlaneKLow | kPlaneVLow;

LayerError Encode(const BlockShape& shape, const LayerSource& source, const LayerParts& out) {
  return EncodePlanes(shape, kPlanes, source, out);
}

}  // namespace

constinit const Codec kKv4pCodec = {.id = CodecId::kKv4p,
                                    .precision = Precision::kInt4,
                                    .name = "kv4p",
                                    .planes = kPlanes,
                                    .supports = SupportsPlaneFamily,
                                    .encode = Encode,
                                    .decode = DecodePlanes,
                                    .attend = AttendToPlanes};

}  // namespace kvtier
