#include <cstring>

#include "codecs/rows.h"
#include "codecs/shape_rules.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

// raw16: one section, K [H][T][Dk] then V [H][T][Dv] in the source dtype, as given.

bool Supports(const BlockShape& shape) {
  return Supports16BitShape(shape) && shape.nraw == 0 && shape.nb == 0;
}

LayerError Encode(const BlockShape& shape, const LayerSource& source, const LayerParts& out) {
  const std::span<std::byte> base = out.part[static_cast<int>(Region::kBase)];
  const uint64_t bytes = RawLayerBytes(shape);
  KVTIER_CHECK(source.raw.size() == bytes &&
               base.size() == PartBytes(CodecId::kRaw16, shape, 0, Region::kBase));
  memcpy(base.data(), source.raw.data(), bytes);
  memset(base.data() + bytes, 0, base.size() - bytes);
  return {};
}

void Decode(const BlockShape& shape, uint8_t /*planes*/, const ConstLayerParts& in, const KvLayerView& out) {
  CopyRawLayer(shape, in.part[static_cast<int>(Region::kBase)], out);
}

}  // namespace

constinit const Codec kRaw16Codec = {.id = CodecId::kRaw16,
                                     .precision = Precision::kBits16,
                                     .name = "raw16",
                                     .planes = 0,
                                     .supports = Supports,
                                     .encode = Encode,
                                     .decode = Decode};

}  // namespace kvtier
