#include "tiers/image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/support/blocks.h"

namespace kvtier {
namespace {

/// Corruption must be found in an image of every codec.
class ImageConformance : public testing::TestWithParam<CodecId> {
 protected:
  void SetUp() override {
    identity_ = MakeIdentity(3, SmallShapeFor(*FindCodec(GetParam())));
    const std::vector<std::byte> raw = RandomRaw(identity_.shape, 11);
    auto image = EncodeOwned(*FindCodec(GetParam()), identity_, raw);
    ASSERT_TRUE(image.ok()) << image.status().ToString();
    bytes_ = CopyOf(image->bytes);
  }

  ImageHeader Header() const {
    ImageHeader header;
    std::memcpy(&header, bytes_.data(), sizeof(header));
    return header;
  }
  /// Puts a changed header back, with a right checksum: only the meaning is wrong.
  void Rewrite(ImageHeader header) {
    const std::span<const std::byte> table =
        std::span(bytes_).subspan(kImageHeaderBytes, header.layers * kLayerEntryBytes);
    header.header_crc = ContinueCrc32c(Crc32c(std::as_bytes(std::span(&header, 1)).first(188)), table);
    std::memcpy(bytes_.data(), &header, sizeof(header));
  }
  Code ParseCode() const {
    const auto parsed = ParseImage(bytes_);
    return parsed.ok() ? Code::kOk : parsed.status().code();
  }

  BlockIdentity identity_;
  std::vector<std::byte> bytes_;
};

TEST_P(ImageConformance, ReadsBackWhatWasEncoded) {
  const auto image = ParseImage(bytes_);
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_EQ(image->codec->id, GetParam());
  EXPECT_EQ(image->bytes.size(), bytes_.size());
  EXPECT_EQ(image->bytes.size(), PlainImageBytes(*image->codec, image->identity.shape));
  EXPECT_EQ(image->bytes.size() % kImageAlign, 0u);
  EXPECT_TRUE(MatchIdentity(*image, identity_).ok());
  EXPECT_TRUE(VerifyImage(*image).ok());
}

TEST_P(ImageConformance, AcceptsTheImageInALargerSlotAndViewsItAlone) {
  const size_t size = bytes_.size();
  bytes_.resize(size + 4096, std::byte{0xEE});
  const auto image = ParseImage(bytes_);
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->bytes.size(), size);
}

TEST_P(ImageConformance, S44_AnyFlippedBitIsDetected) {
  const ImageLayout layout = ParseImage(bytes_)->layout;
  std::vector<uint64_t> offsets;
  for (uint64_t at = 0; at < layout.layers[0][0].offset; ++at)
    offsets.push_back(at);  // header, table, padding
  for (const auto& layer : layout.layers) {
    for (const ImageLayout::Part& part : layer) {
      if (part.bytes == 0) continue;
      for (uint64_t step : {uint64_t{0}, part.bytes / 3, part.bytes / 2, part.bytes - 1}) {
        offsets.push_back(part.offset + step);
      }
    }
  }
  for (uint64_t offset : offsets) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes_[offset] ^= static_cast<std::byte>(1 << bit);
      const auto image = ParseImage(bytes_);
      const Status status = image.ok() ? VerifyImage(*image) : image.status();
      EXPECT_FALSE(status.ok()) << "byte " << offset << ", bit " << bit;
      EXPECT_TRUE(status.code() == Code::kDataLoss || (offset < 12 && status.code() == Code::kUnimplemented))
          << "byte " << offset << ", bit " << bit << ": " << status.ToString();
      bytes_[offset] ^= static_cast<std::byte>(1 << bit);
    }
  }
  EXPECT_EQ(ParseCode(), Code::kOk);
}

TEST_P(ImageConformance, S43_OnlyTheBrokenLayerFailsItsCheck) {
  const ImageLayout layout = ParseImage(bytes_)->layout;
  bytes_[layout.layers[1][0].offset] ^= std::byte{1};
  const auto image = ParseImage(bytes_);
  ASSERT_TRUE(image.ok());
  EXPECT_TRUE(VerifyLayer(*image, 0).ok());
  EXPECT_EQ(VerifyLayer(*image, 1).code(), Code::kDataLoss);
  EXPECT_TRUE(VerifyLayer(*image, 2).ok());
}

TEST_P(ImageConformance, S44_EmptyTruncatedAndForeignBytesAreCorrupt) {
  EXPECT_EQ(ParseImage({}).status().code(), Code::kDataLoss);
  for (size_t size :
       {size_t{1}, size_t{191}, size_t{192}, size_t{200}, bytes_.size() / 2, bytes_.size() - 1}) {
    EXPECT_EQ(ParseImage(std::span(bytes_).first(size)).status().code(), Code::kDataLoss) << size;
  }
  EXPECT_EQ(ParseImage(std::vector<std::byte>(bytes_.size(), std::byte{0})).status().code(), Code::kDataLoss);
  EXPECT_EQ(ParseImage(RandomRaw(identity_.shape, 5)).status().code(), Code::kDataLoss);
}

TEST_P(ImageConformance, WhatALaterVersionMayBringIsUnsupportedNotCorrupt) {
  const ImageHeader good = Header();
  ImageHeader header = good;
  header.version = 2;
  Rewrite(header);
  EXPECT_EQ(ParseCode(), Code::kUnimplemented);
  header = good;
  header.codec = 99;
  Rewrite(header);
  EXPECT_EQ(ParseCode(), Code::kUnimplemented);
  header = good;
  header.dtype = 9;
  Rewrite(header);
  EXPECT_EQ(ParseCode(), Code::kUnimplemented);
  header = good;
  header.flags |= 4;
  Rewrite(header);
  EXPECT_EQ(ParseCode(), Code::kUnimplemented);
}

TEST_P(ImageConformance, SizesAndShapesThatCannotBeAreCorruptEvenWithAGoodChecksum) {
  const ImageHeader good = Header();
  const auto code_with = [&](auto&& change) {
    ImageHeader header = good;
    change(header);
    Rewrite(header);
    return ParseCode();
  };
  EXPECT_EQ(code_with([](ImageHeader& h) { h.image_bytes += 64; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.base_bytes -= 64; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.tokens = 0; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.tokens = 65535; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.layers = 0; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.k_dim = 60; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.nraw = 9; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.nb = 255; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.flags ^= kImageFlagRotatedV; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.zero[10] = std::byte{1}; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader& h) { h.content_generation = 1; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](ImageHeader&) {}), Code::kOk);
}

TEST_P(ImageConformance, PlanesThatCannotBeAreCorrupt) {
  const auto code_with_planes = [&](uint8_t planes) {
    const std::byte kept = bytes_[kImageHeaderBytes];
    bytes_[kImageHeaderBytes] = std::byte{planes};
    Rewrite(Header());
    const Code code = ParseCode();
    bytes_[kImageHeaderBytes] = kept;
    return code;
  };
  EXPECT_EQ(code_with_planes(kPlaneBoost | kPlaneKLow), Code::kDataLoss);
  EXPECT_EQ(code_with_planes(kPlaneRaw | kPlaneVLow), Code::kDataLoss);
  EXPECT_EQ(code_with_planes(16), Code::kDataLoss);
}

TEST_P(ImageConformance, ArbitraryHeadersWithGoodChecksumsAreParsedWithinTheirBytes) {
  constexpr uint32_t kSeed = 31;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 rng(kSeed);
  const std::vector<std::byte> good = bytes_;
  for (int round = 0; round < 3000; ++round) {
    bytes_ = good;
    ImageHeader header = Header();
    for (uint32_t changes = 1 + rng() % 3; changes > 0; --changes) {
      // Anything between version and key, and the sizes.
      const uint32_t at = rng() % 4 == 0 ? 104 + rng() % 16 : 6 + rng() % 18;
      reinterpret_cast<uint8_t*>(&header)[at] = static_cast<uint8_t>(rng() % 2 == 0 ? rng() : rng() % 4);
    }
    header.layers = static_cast<uint16_t>(header.layers % 4);
    for (int i = 0; i < header.layers; ++i) {
      if (rng() % 4 == 0) bytes_[kImageHeaderBytes + i * kLayerEntryBytes] = static_cast<std::byte>(rng());
    }
    Rewrite(header);
    const auto image = ParseImage(bytes_);
    if (!image.ok()) continue;
    EXPECT_LE(image->bytes.size(), bytes_.size());
    VerifyImage(*image).IgnoreBecause("only that it stays within the bytes matters here");
  }
}

TEST_P(ImageConformance, AnotherBlockIsNotTakenForThisOne) {
  const auto image = ParseImage(bytes_);
  ASSERT_TRUE(image.ok());
  const auto code_with = [&](auto&& change) {
    BlockIdentity expected = identity_;
    change(expected);
    return MatchIdentity(*image, expected).code();
  };
  EXPECT_EQ(code_with([](BlockIdentity&) {}), Code::kOk);
  EXPECT_EQ(code_with([](BlockIdentity& i) { i.key.bytes[31] ^= std::byte{1}; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](BlockIdentity& i) { i.name_space.bytes[0] ^= std::byte{1}; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](BlockIdentity& i) { ++i.first_position; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](BlockIdentity& i) { i.shape.tokens = 32; }), Code::kDataLoss);
  EXPECT_EQ(code_with([](BlockIdentity& i) { i.shape.dtype = DType::kBf16; }), Code::kDataLoss);
  // A raw block does not record what only others use.
  const Code other_rows = IsRawCodec(GetParam()) ? Code::kOk : Code::kDataLoss;
  EXPECT_EQ(code_with([](BlockIdentity& i) { i.shape.nraw = 0; }), other_rows);
}

std::vector<CodecId> CodecIds() {
  std::vector<CodecId> ids;
  for (const Codec* codec : AllCodecs()) ids.push_back(codec->id);
  return ids;
}

INSTANTIATE_TEST_SUITE_P(Codecs, ImageConformance, testing::ValuesIn(CodecIds()),
                         [](const auto& info) { return std::string(FindCodec(info.param)->name); });

}  // namespace
}  // namespace kvtier
