#include "codecs/plane_family.h"

#include "codecs/relative_rms.h"
#include "codecs/section_cursor.h"
#include "codecs/sections.h"
#include "codecs/shape_rules.h"
#include "kernels/simd/attend_simd.h"
#include "kernels/simd/boost_simd.h"
#include "kernels/simd/dequantize_simd.h"
#include "kernels/simd/quantize_simd.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

constexpr uint16_t kMinPlaneTokens = 4;

template <typename Byte, typename Parts>
void TakeBase(const BlockShape& shape, const Parts& parts, PlaneSections<Byte>& sections) {
  const SectionBytes bytes = SectionBytesOf(shape);
  auto base = CursorOf<Byte>(parts, Region::kBase);
  sections.k_scale = base.Take(bytes.k_ranges);
  sections.k_min = sections.k_scale + bytes.k_ranges / 2;
  sections.v_scale = base.Take(bytes.v_scales);
  sections.k_raw = base.Take(bytes.raw_rows);
  sections.v_raw = sections.k_raw + uint64_t{2} * shape.kv_heads * shape.nraw * shape.k_dim;
  sections.k_high = base.Take(bytes.k_high);
  sections.v_high = base.Take(bytes.v_high);
  KVTIER_CHECK(base.AtEnd());
}

template <typename Byte, typename Parts>
void TakeBoost(const BlockShape& shape, const Parts& parts, PlaneSections<Byte>& sections) {
  auto boost = CursorOf<Byte>(parts, Region::kBoost);
  sections.boost_ids = boost.Take(SectionBytesOf(shape).boost);
  sections.boost_low = sections.boost_ids + uint64_t{shape.kv_heads} * shape.nb;
  KVTIER_CHECK(boost.AtEnd());
}

template <typename Byte, typename Parts>
PlaneSections<Byte> SectionsOf(const BlockShape& shape, uint8_t planes, const Parts& parts) {
  const SectionBytes bytes = SectionBytesOf(shape);
  PlaneSections<Byte> sections;
  TakeBase(shape, parts, sections);
  if (planes & kPlaneBoost && shape.nb > 0) TakeBoost(shape, parts, sections);
  if (planes & kPlaneKLow) {
    auto k_tail = CursorOf<Byte>(parts, Region::kKTail);
    sections.k_low = k_tail.Take(bytes.k_low);
    KVTIER_CHECK(k_tail.AtEnd());
  }
  if (planes & kPlaneVLow) {
    auto v_tail = CursorOf<Byte>(parts, Region::kVTail);
    sections.v_low = v_tail.Take(bytes.v_low);
    KVTIER_CHECK(v_tail.AtEnd());
  }
  return sections;
}

LayerError ErrorOf(const LayerErrors& errors) {
  const RowErrors &k = errors.k, &v = errors.v;
  return {.k_int4 = RelativeRms(k.int4, k.square),
          .k_int2 = RelativeRms(k.int2, k.square),
          .v_int4 = RelativeRms(v.int4, v.square),
          .v_int2 = RelativeRms(v.int2, v.square)};
}

}  // namespace

bool SupportsPlaneFamily(const BlockShape& shape) {
  return HasCodecShape(shape) && shape.tokens >= kMinPlaneTokens && shape.nraw <= kMaxRawRows &&
         shape.nb % 4 == 0 && shape.nb <= shape.k_dim;
}

LayerError EncodePlanes(const BlockShape& shape, uint8_t planes, const LayerSource& source,
                        const LayerParts& out) {
  KVTIER_CHECK(SupportsPlaneFamily(shape) && source.raw.size() == RawLayerBytes(shape));
  return ErrorOf(QuantizeSimd({.shape = shape,
                               .raw = source.raw.data(),
                               .scales = source.scales,
                               .out = SectionsOf<uint8_t>(shape, planes, out)}));
}

void DecodePlanes(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in,
                  const KvLayerView& out) {
  if (planes & kPlaneRaw) {
    CopyRawLayer(shape, in.part[static_cast<int>(Region::kBase)], out);
    return;
  }
  KVTIER_CHECK(SupportsPlaneFamily(shape));
  const DequantizeArgs args = {
      .shape = shape, .in = SectionsOf<const uint8_t>(shape, planes, in), .out = out};
  DequantizeSimd(args);
}

VForm AttendToPlanes(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in,
                     const AttentionQuery& query, const AttentionPartial& out) {
  if (planes & kPlaneRaw) return AttendRawLayer(shape, in.part[static_cast<int>(Region::kBase)], query, out);
  KVTIER_CHECK(SupportsPlaneFamily(shape) && query.query_heads % shape.kv_heads == 0);
  AttendPlanesSimd(
      {.shape = shape, .in = SectionsOf<const uint8_t>(shape, planes, in), .query = query, .out = out});
  return VForm::kRotated;
}

void GatherBoost(const BlockShape& shape, const ConstLayerParts& in, std::span<std::byte> boost) {
  KVTIER_CHECK(SupportsPlaneFamily(shape));
  if (shape.nb == 0) return;
  LayerParts target;
  target.part[static_cast<int>(Region::kBoost)] = boost;
  GatherBoostArgs args = {.shape = shape, .in = SectionsOf<const uint8_t>(shape, kPlaneKLow, in), .out = {}};
  TakeBoost(shape, target, args.out);
  GatherBoostSimd(args);
}

}  // namespace kvtier
