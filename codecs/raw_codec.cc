#include "codecs/raw_codec.h"

#include <cstring>

#include "tiers/base/check.h"

namespace kvtier {

LayerError EncodeRaw(const BlockShape& shape, const LayerSource& source, const LayerParts& out) {
  const std::span<std::byte> base = out.part[static_cast<int>(Region::kBase)];
  const uint64_t bytes = RawLayerBytes(shape);
  KVTIER_CHECK(source.raw.size() == bytes && base.size() >= bytes);
  memcpy(base.data(), source.raw.data(), bytes);
  memset(base.data() + bytes, 0, base.size() - bytes);
  return {};
}

void DecodeRaw(const BlockShape& shape, uint8_t /*planes*/, const ConstLayerParts& in,
               const KvLayerView& out) {
  CopyRawLayer(shape, in.part[static_cast<int>(Region::kBase)], out);
}

}  // namespace kvtier
