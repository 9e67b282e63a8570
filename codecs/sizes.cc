#include "codecs/codec.h"
#include "codecs/sections.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

uint64_t PlaneFamilyBytes(const BlockShape& shape, uint8_t planes, Region region) {
  const SectionBytes bytes = SectionBytesOf(shape);
  switch (region) {
    case Region::kBase:
      return AlignSection(bytes.k_ranges) + AlignSection(bytes.v_scales) + AlignSection(bytes.raw_rows) +
             AlignSection(bytes.k_high) + AlignSection(bytes.v_high);
    case Region::kBoost:
      return planes & kPlaneBoost ? AlignSection(bytes.boost) : 0;
    case Region::kKTail:
      return planes & kPlaneKLow ? AlignSection(bytes.k_low) : 0;
    case Region::kVTail:
      return planes & kPlaneVLow ? AlignSection(bytes.v_low) : 0;
  }
  return 0;
}

}  // namespace

uint64_t PartBytes(CodecId codec, const BlockShape& shape, uint8_t planes, Region region) {
  switch (codec) {
    case CodecId::kRaw16:
      planes = kPlaneRaw;
      break;
    case CodecId::kKv4p:
    case CodecId::kKv42:
    case CodecId::kKv2p:
      break;
    default:
      KVTIER_CHECK(FindCodec(codec) != nullptr);
  }
  if (planes & kPlaneRaw) return region == Region::kBase ? AlignSection(RawLayerBytes(shape)) : 0;
  return PlaneFamilyBytes(shape, planes, region);
}

}  // namespace kvtier
