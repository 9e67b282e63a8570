#include "codecs/image_layout.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

BlockShape Shape(uint16_t heads, uint16_t dim, uint16_t tokens, uint8_t nb, uint16_t layers = 1) {
  return {.layers = layers, .kv_heads = heads, .k_dim = dim, .v_dim = dim, .tokens = tokens, .nb = nb};
}

TEST(ImageLayoutTest, SizesAreThoseOfTheFormatDocument) {
  const auto image_bytes = [](const char* codec, const BlockShape& shape) {
    return PlainImageBytes(*FindCodec(codec), shape);
  };
  const uint64_t front = 192 + 64;  // header, one table entry, padding
  const BlockShape large = Shape(8, 128, 128, 64), small = Shape(8, 128, 64, 64);
  EXPECT_EQ(image_bytes("raw16", Shape(8, 128, 128, 0)), front + 524'288);
  EXPECT_EQ(image_bytes("kv4p", large), front + 137'216);
  EXPECT_EQ(image_bytes("kv42", large), front + 104'448);
  EXPECT_EQ(image_bytes("kv2p", large), front + 88'576);
  EXPECT_EQ(image_bytes("kv4p", small), front + 70'656);
  EXPECT_EQ(image_bytes("kv42", small), front + 54'272);
  EXPECT_EQ(image_bytes("kv2p", small), front + 46'592);
  // Three heads of 64: 13,248, 10,176 and 8,736 bytes, of which the boost (1,632) is padded to 1,664.
  EXPECT_EQ(image_bytes("kv4p", Shape(3, 64, 64, 32)), front + 13'248);
  EXPECT_EQ(image_bytes("kv42", Shape(3, 64, 64, 32)), front + 10'176);
  EXPECT_EQ(image_bytes("kv2p", Shape(3, 64, 64, 32)), front + 8'736 + 32);
  EXPECT_EQ(image_bytes("kv2p", Shape(3, 64, 64, 0)), front + 7'104) << "no boost, no boost part";
}

TEST(ImageLayoutTest, RegionsAndPartsFollowEachOtherAligned) {
  const BlockShape shape = Shape(3, 80, 37, 8, 5);
  const std::vector<uint8_t> planes = {kPlaneBoost, kPlaneKLow | kPlaneVLow, kPlaneRaw, kPlaneKLow,
                                       kPlaneBoost | kPlaneVLow};
  const ImageLayout layout = ComputeImageLayout(CodecId::kKv2p, shape, planes);
  uint64_t at = 192 + 5 * 32 + 32;  // 352, padded to 384
  for (int region = 0; region < kRegions; ++region) {
    for (size_t layer = 0; layer < planes.size(); ++layer) {
      const ImageLayout::Part& part = layout.layers[layer][region];
      EXPECT_EQ(part.offset, at);
      EXPECT_EQ(part.bytes % kImageAlign, 0u);
      EXPECT_EQ(part.bytes, PartBytes(CodecId::kKv2p, shape, planes[layer], static_cast<Region>(region)));
      at += part.bytes;
    }
    if (region == 0) {
      EXPECT_EQ(layout.base_bytes, at - 384);
    }
  }
  EXPECT_EQ(layout.image_bytes, at);
  EXPECT_EQ(layout.layers[0][1].bytes, 320u) << "24 ids and 3 * 40 * 2 bytes of low bits: 264, padded";
}

TEST(ImageLayoutTest, PlainSizeEqualsTheLayoutOfUniformPlanes) {
  for (const Codec* codec : AllCodecs()) {
    for (const uint8_t nb : {0, 8}) {
      const BlockShape shape = Shape(2, 96, 50, nb, 7);
      if (!codec->supports(shape)) continue;
      const std::vector<uint8_t> planes(7, EncodedPlanes(*codec, shape));
      EXPECT_EQ(ComputeImageLayout(codec->id, shape, planes).image_bytes, PlainImageBytes(*codec, shape));
    }
  }
}

TEST(ImageLayoutTest, TheHeaderHasItsFieldsAtTheDocumentedOffsets) {
  EXPECT_EQ(offsetof(ImageHeader, codec), 6u);
  EXPECT_EQ(offsetof(ImageHeader, flags), 8u);
  EXPECT_EQ(offsetof(ImageHeader, tokens), 12u);
  EXPECT_EQ(offsetof(ImageHeader, v_dim), 20u);
  EXPECT_EQ(offsetof(ImageHeader, first_position), 24u);
  EXPECT_EQ(offsetof(ImageHeader, key), 40u);
  EXPECT_EQ(offsetof(ImageHeader, name_space), 72u);
  EXPECT_EQ(offsetof(ImageHeader, image_bytes), 104u);
  EXPECT_EQ(offsetof(ImageHeader, base_bytes), 112u);
  EXPECT_EQ(offsetof(ImageHeader, header_crc), 188u);
  EXPECT_EQ(offsetof(LayerEntry, crc), 4u);
  EXPECT_EQ(offsetof(LayerEntry, error), 20u);
}

}  // namespace
}  // namespace kvtier
