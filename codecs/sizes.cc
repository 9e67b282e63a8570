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

uint64_t Kv8Bytes(const BlockShape& shape, Region region) {
  const Kv8SectionBytes bytes = Kv8SectionBytesOf(shape);
  if (region != Region::kBase) return 0;
  return AlignSection(bytes.k_ranges) + AlignSection(bytes.v_scales) + AlignSection(bytes.raw_rows) +
         AlignSection(bytes.k_codes) + AlignSection(bytes.v_codes);
}

}  // namespace

uint64_t PartBytes(CodecId codec, const BlockShape& shape, uint8_t planes, Region region) {
  KVTIER_CHECK(FindCodec(codec) != nullptr);
  const bool is_raw = IsRawCodec(codec) || (planes & kPlaneRaw) != 0;
  if (is_raw) return region == Region::kBase ? AlignSection(RawLayerBytes(shape)) : 0;
  return codec == CodecId::kKv8 ? Kv8Bytes(shape, region) : PlaneFamilyBytes(shape, planes, region);
}

}  // namespace kvtier
