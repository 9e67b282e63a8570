#include "codecs/image_layout.h"

#include "codecs/sections.h"
#include "tiers/base/check.h"

namespace kvtier {

ImageLayout ComputeImageLayout(CodecId codec, const BlockShape& shape, std::span<const uint8_t> planes) {
  KVTIER_CHECK(planes.size() == shape.layers);
  ImageLayout layout;
  layout.layers.resize(planes.size());
  uint64_t offset = AlignSection(kImageHeaderBytes + kLayerEntryBytes * shape.layers);
  for (int region = 0; region < kRegions; ++region) {
    const uint64_t region_start = offset;
    for (size_t layer = 0; layer < planes.size(); ++layer) {
      const uint64_t bytes = PartBytes(codec, shape, planes[layer], static_cast<Region>(region));
      layout.layers[layer][region] = {.offset = offset, .bytes = bytes};
      offset += bytes;
    }
    if (static_cast<Region>(region) == Region::kBase) layout.base_bytes = offset - region_start;
  }
  layout.image_bytes = offset;
  return layout;
}

uint64_t PlainImageBytes(const Codec& codec, const BlockShape& shape) {
  const uint8_t planes = EncodedPlanes(codec, shape);
  uint64_t layer_bytes = 0;
  for (int region = 0; region < kRegions; ++region)
    layer_bytes += PartBytes(codec.id, shape, planes, static_cast<Region>(region));
  return AlignSection(kImageHeaderBytes + kLayerEntryBytes * shape.layers) + shape.layers * layer_bytes;
}

}  // namespace kvtier
