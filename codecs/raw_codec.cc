#include "codecs/raw_codec.h"

#include <cstring>

#include "kernels/simd/attend_simd.h"
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

VForm AttendRaw(const BlockShape& shape, uint8_t /*planes*/, const ConstLayerParts& in,
                const AttentionQuery& query, const AttentionPartial& out) {
  return AttendRawLayer(shape, in.part[static_cast<int>(Region::kBase)], query, out);
}

VForm AttendRawLayer(const BlockShape& shape, std::span<const std::byte> raw, const AttentionQuery& query,
                     const AttentionPartial& out) {
  KVTIER_CHECK(raw.size() >= RawLayerBytes(shape) && query.query_heads % shape.kv_heads == 0);
  AttendRowsSimd({.shape = shape, .raw = raw.data(), .query = query, .out = out});
  return VForm::kPlain;
}

}  // namespace kvtier
