#include <algorithm>

#include "codecs/relative_rms.h"
#include "codecs/rows.h"
#include "codecs/section_cursor.h"
#include "codecs/sections.h"
#include "codecs/shape_rules.h"
#include "kernels/simd/attend_simd.h"
#include "kernels/simd/kv8_simd.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

// K in 255 steps per channel, V in FP8 E4M3 per token: all in the base.

bool Supports(const BlockShape& shape) {
  return HasCodecShape(shape) && shape.nraw <= std::min<uint32_t>(kMaxRawRows, shape.tokens) && shape.nb == 0;
}

template <typename Byte, typename Parts>
Kv8Sections<Byte> SectionsOf(const BlockShape& shape, const Parts& parts) {
  const Kv8SectionBytes bytes = Kv8SectionBytesOf(shape);
  auto base = CursorOf<Byte>(parts, Region::kBase);
  Kv8Sections<Byte> sections;
  sections.k_scale = base.Take(bytes.k_ranges);
  sections.k_min = sections.k_scale + bytes.k_ranges / 2;
  sections.v_scale = base.Take(bytes.v_scales);
  sections.k_raw = base.Take(bytes.raw_rows);
  sections.v_raw = sections.k_raw + uint64_t{2} * shape.kv_heads * shape.nraw * shape.k_dim;
  sections.k_codes = base.Take(bytes.k_codes);
  sections.v_codes = base.Take(bytes.v_codes);
  KVTIER_CHECK(base.AtEnd());
  return sections;
}

LayerError Encode(const BlockShape& shape, const LayerSource& source, const LayerParts& out) {
  KVTIER_CHECK(Supports(shape) && source.raw.size() == RawLayerBytes(shape));
  const Kv8LayerErrors errors =
      QuantizeKv8Simd({.source = {.shape = shape, .raw = source.raw.data(), .scales = source.scales},
                       .out = SectionsOf<uint8_t>(shape, out)});
  return {.k_int4 = RelativeRms(errors.k.error, errors.k.square),
          .v_int4 = RelativeRms(errors.v.error, errors.v.square)};
}

void Decode(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in, const KvLayerView& out) {
  if (planes & kPlaneRaw) {
    CopyRawLayer(shape, in.part[static_cast<int>(Region::kBase)], out);
    return;
  }
  KVTIER_CHECK(Supports(shape));
  DequantizeKv8Simd({.shape = shape, .in = SectionsOf<const uint8_t>(shape, in), .out = out});
}

VForm Attend(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in, const AttentionQuery& query,
             const AttentionPartial& out) {
  if (planes & kPlaneRaw) return AttendRawLayer(shape, in.part[static_cast<int>(Region::kBase)], query, out);
  KVTIER_CHECK(Supports(shape) && query.query_heads % shape.kv_heads == 0);
  AttendKv8Simd({.shape = shape, .in = SectionsOf<const uint8_t>(shape, in), .query = query, .out = out});
  return VForm::kPlain;
}

}  // namespace

constinit const Codec kKv8Codec = {.id = CodecId::kKv8,
                                   .precision = Precision::kBits8,
                                   .name = "kv8",
                                   .planes = 0,
                                   .supports = Supports,
                                   .encode = Encode,
                                   .decode = Decode,
                                   .attend = Attend};

}  // namespace kvtier
