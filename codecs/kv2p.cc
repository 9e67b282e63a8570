#include "codecs/plane_family.h"
#include "codecs/rows.h"

namespace kvtier {
namespace {

// Two bits, four for the boosted K channels: base and boost.
constexpr uint8_t kPlanes = kPlaneBoost;

LayerError Encode(const BlockShape& shape, const LayerSource& source, const LayerParts& out) {
  return EncodePlanes(shape, kPlanes, source, out);
}

}  // namespace

constinit const Codec kKv2pCodec = {.id = CodecId::kKv2p,
                                    .precision = Precision::kInt2,
                                    .name = "kv2p",
                                    .planes = kPlanes,
                                    .supports = SupportsPlaneFamily,
                                    .encode = Encode,
                                    .decode = DecodePlanes,
                                    .attend = AttendToPlanes};

}  // namespace kvtier
