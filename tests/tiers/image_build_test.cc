#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/blocks.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"
#include "tiers/base/mapping.h"
#include "tiers/base/memfd.h"
#include "tiers/image.h"
#include "tiers/layer_crew.h"

namespace kvtier {
namespace {

const Codec& RowOf(CodecId id) {
  const Codec* codec = FindCodec(id);
  KVTIER_CHECK(codec != nullptr);
  return *codec;
}
const Codec& Raw16() {
  return RowOf(CodecId::kRaw16);
}
const Codec& Int4() {
  return RowOf(CodecId::kKv4p);
}
const Codec& K4V2() {
  return RowOf(CodecId::kKv42);
}
const Codec& Int2() {
  return RowOf(CodecId::kKv2p);
}

/// fp16 infinity into one value of a layer.
void SpoilLayer(std::vector<std::byte>& raw, const BlockShape& shape, uint32_t layer) {
  Store16(raw.data() + layer * RawLayerBytes(shape) + 10, kFp16Infinity);
}

std::span<const std::byte> RawLayer(const ImageView& image, uint16_t layer) {
  return image.Parts(layer).part[0].first(RawLayerBytes(image.identity.shape));
}

TEST(EncodeImage, Raw16KeepsEveryByteWhateverItIs) {
  const BlockIdentity identity = MakeIdentity(1);
  std::vector<std::byte> raw = RandomRaw(identity.shape, 1);
  SpoilLayer(raw, identity.shape, 1);
  const auto image = EncodeOwned(Raw16(), identity, raw);
  ASSERT_TRUE(image.ok());
  const auto view = ParseImage(image->bytes);
  ASSERT_TRUE(view.ok() && VerifyImage(*view).ok());
  const uint64_t layer_bytes = RawLayerBytes(identity.shape);
  for (uint16_t layer = 0; layer < identity.shape.layers; ++layer) {
    EXPECT_EQ(CopyOf(RawLayer(*view, layer)),
              CopyOf(std::span(raw).subspan(layer * layer_bytes, layer_bytes)));
    EXPECT_EQ(view->KError(layer), 0);
    EXPECT_EQ(view->VError(layer), 0);
  }
  EXPECT_EQ(view->identity.shape.nraw, 0);
  EXPECT_EQ(view->identity.shape.nb, 0);
}

TEST(EncodeImage, Raw16HoldsTailsOfAnyLength) {
  for (uint16_t tokens : {1, 2, 3, 5, 127, 128}) {
    const BlockIdentity identity = MakeIdentity(tokens, SmallShape(tokens));
    const std::vector<std::byte> raw = RandomRaw(identity.shape, tokens);
    const auto image = EncodeOwned(Raw16(), identity, raw);
    ASSERT_TRUE(image.ok()) << image.status().ToString();
    const auto view = ParseImage(image->bytes);
    ASSERT_TRUE(view.ok()) << tokens << ": " << view.status().ToString();
    EXPECT_TRUE(VerifyImage(*view).ok());
    EXPECT_TRUE(MatchIdentity(*view, identity).ok());
  }
}

TEST(EncodeImage, NamesTheBytesItNeedsWhenTheSlotIsTooSmall) {
  for (const Codec* codec : AllCodecs()) {
    const BlockIdentity identity = MakeIdentity(2, SmallShapeFor(*codec));
    const std::vector<std::byte> raw = RandomRaw(identity.shape, 2);
    AlignedBuffer memory, tile;
    const uint64_t needed = PlainImageBytes(*codec, StoredShape(codec->id, identity.shape));
    const auto out = memory.Reserve(needed);
    ASSERT_TRUE(out.ok());
    const BuiltImage small = EncodeImage(*codec, identity, raw, out->first(needed - 1), tile);
    EXPECT_EQ(small.status.code(), Code::kOutOfRange);
    EXPECT_EQ(small.image_bytes, needed);
    const BuiltImage fits = EncodeImage(*codec, identity, raw, *out, tile);
    EXPECT_TRUE(fits.status.ok());
    EXPECT_EQ(fits.image_bytes, needed);
  }
}

TEST(EncodeImage, ALayerThatCannotBeEncodedStaysRawAndTheOthersAreWhatTheyWouldBe) {
  const BlockIdentity identity = MakeIdentity(3);
  const std::vector<std::byte> good = RandomRaw(identity.shape, 3);
  std::vector<std::byte> bad = good;
  SpoilLayer(bad, identity.shape, 1);
  const auto plain = EncodeOwned(Int4(), identity, good);
  const auto mixed = EncodeOwned(Int4(), identity, bad);
  ASSERT_TRUE(plain.ok() && mixed.ok());
  const auto plain_view = ParseImage(plain->bytes), mixed_view = ParseImage(mixed->bytes);
  ASSERT_TRUE(plain_view.ok() && mixed_view.ok());
  ASSERT_TRUE(VerifyImage(*mixed_view).ok());
  EXPECT_EQ(mixed_view->table[1].planes, kPlaneRaw);
  const uint64_t layer_bytes = RawLayerBytes(identity.shape);
  EXPECT_EQ(CopyOf(RawLayer(*mixed_view, 1)), CopyOf(std::span(bad).subspan(layer_bytes, layer_bytes)));
  EXPECT_EQ(mixed_view->KError(1), 0);
  for (uint16_t layer : {0, 2}) {
    EXPECT_EQ(mixed_view->table[layer].crc, plain_view->table[layer].crc);
    EXPECT_EQ(mixed_view->table[layer].error, plain_view->table[layer].error);
    EXPECT_GT(mixed_view->KError(layer), 0);
  }
  // And it goes down the ladder as it is.
  const auto int2 = RequantizeOwned(mixed->bytes, Int2(), identity);
  ASSERT_TRUE(int2.ok()) << int2.status().ToString();
  const auto int2_view = ParseImage(int2->bytes);
  ASSERT_TRUE(int2_view.ok() && VerifyImage(*int2_view).ok());
  EXPECT_EQ(CopyOf(RawLayer(*int2_view, 1)), CopyOf(RawLayer(*mixed_view, 1)));
}

TEST(EncodeImage, WithAllLayersRawAndASmallSlotNamesTheLargerSize) {
  const BlockIdentity identity = MakeIdentity(4);
  std::vector<std::byte> raw = RandomRaw(identity.shape, 4);
  for (uint32_t layer = 0; layer < identity.shape.layers; ++layer) SpoilLayer(raw, identity.shape, layer);
  AlignedBuffer memory, tile;
  const auto out = memory.Reserve(PlainImageBytes(Int4(), identity.shape));
  ASSERT_TRUE(out.ok());
  const BuiltImage built = EncodeImage(Int4(), identity, raw, *out, tile);
  EXPECT_EQ(built.status.code(), Code::kOutOfRange);
  const auto image = EncodeOwned(Int4(), identity, raw);
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(built.image_bytes, image->bytes.size());
}

TEST(EncodeImage, RefusesASourceOfTheWrongSize) {
  const BlockIdentity identity = MakeIdentity(5);
  std::vector<std::byte> raw = RandomRaw(identity.shape, 5);
  raw.pop_back();
  EXPECT_EQ(EncodeOwned(Raw16(), identity, raw).status().code(), Code::kInvalidArgument);
}

TEST(EncodeImage, SaysWhenACodecCannotHoldTheShape) {
  const BlockIdentity identity = MakeIdentity(6, SmallShape(3));
  EXPECT_EQ(EncodeOwned(Int4(), identity, RandomRaw(identity.shape, 6)).status().code(),
            Code::kUnimplemented);
  EXPECT_FALSE(CanRequantize(CodecId::kRaw16, Int4(), identity.shape));
}

TEST(EncodeImage, ASourceThatChangesMeanwhileGivesAnImageThatAgreesWithItselfOrAnError) {
  const BlockIdentity identity = MakeIdentity(7, SmallShape(16));
  const std::vector<std::byte> raw = RandomRaw(identity.shape, 7);
  // Two mappings, as a client and the daemon have them.
  const auto file = MakeMemoryFile("kvtier-test", raw.size());
  ASSERT_TRUE(file.ok());
  const auto client = MappedMemory::MapShared(file->get(), raw.size(), MapAccess::kReadWrite);
  const auto daemon = MappedMemory::MapShared(file->get(), raw.size(), MapAccess::kReadOnly);
  ASSERT_TRUE(client.ok() && daemon.ok());
  std::ranges::copy(raw, client->data());

  std::atomic<bool> done{false};
  std::thread writer([&] {
    std::mt19937 rng(7);
    while (!done) {
      const size_t at = rng() % (raw.size() / 2) * 2;
      Store16(client->data() + at, rng() % 64 == 0 ? kFp16Infinity : uint16_t{0x3c00});
      if (rng() % 16 == 0) std::ranges::copy(raw, client->data());
    }
  });
  for (const Codec* codec : AllCodecs()) {
    for (int round = 0; round < 50; ++round) {
      const BlockIdentity own = MakeIdentity(7, SmallShapeFor(*codec, 16));
      const auto image = EncodeOwned(*codec, own, daemon->span().first(RawBlockBytes(own.shape)));
      if (!image.ok()) {
        EXPECT_EQ(image.status().code(), Code::kInvalidArgument) << image.status().ToString();
        continue;
      }
      const auto view = ParseImage(image->bytes);
      EXPECT_TRUE(view.ok() && VerifyImage(*view).ok()) << codec->name;
    }
  }
  done = true;
  writer.join();
}

/// Every path down the ladder gives the same bytes, on random and on real values.
void ExpectOneInt2(const BlockIdentity& identity, std::span<const std::byte> raw) {
  const auto raw16 = EncodeOwned(Raw16(), identity, raw);
  const auto int4 = EncodeOwned(Int4(), identity, raw);
  const auto k4v2 = EncodeOwned(K4V2(), identity, raw);
  const auto int2 = EncodeOwned(Int2(), identity, raw);
  ASSERT_TRUE(raw16.ok() && int4.ok() && k4v2.ok() && int2.ok());

  const auto from_raw = [&](const Codec& codec) { return RequantizeOwned(raw16->bytes, codec, identity); };
  EXPECT_EQ(CopyOf(from_raw(Int4())->bytes), CopyOf(int4->bytes));
  EXPECT_EQ(CopyOf(from_raw(Int2())->bytes), CopyOf(int2->bytes));
  const auto cut_k4v2 = RequantizeOwned(int4->bytes, K4V2(), identity);
  const auto cut_int2 = RequantizeOwned(int4->bytes, Int2(), identity);
  ASSERT_TRUE(cut_k4v2.ok() && cut_int2.ok());
  EXPECT_EQ(CopyOf(cut_k4v2->bytes), CopyOf(k4v2->bytes));
  EXPECT_EQ(CopyOf(cut_int2->bytes), CopyOf(int2->bytes));
  EXPECT_EQ(CopyOf(RequantizeOwned(cut_k4v2->bytes, Int2(), identity)->bytes), CopyOf(int2->bytes));

  const auto view = ParseImage(cut_int2->bytes);
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(VerifyImage(*view).ok());
  for (uint16_t layer = 0; layer < identity.shape.layers; ++layer) {
    EXPECT_GT(view->KError(layer), Fp32FromFp16(view->table[layer].error[0])) << "int2 is worse than int4";
    EXPECT_GT(view->VError(layer), Fp32FromFp16(view->table[layer].error[2]));
    EXPECT_LT(view->KError(layer), 0.5f);
  }
}

TEST(RequantizeImage, EveryPathToInt2GivesTheSameBytes) {
  for (uint8_t nb : {0, 8, 16, 32}) {
    for (uint16_t tokens : {4, 7, 64, 128}) {
      BlockShape shape = SmallShape(tokens);
      shape.nb = nb;
      SCOPED_TRACE(testing::Message() << "nb " << int{nb} << ", tokens " << tokens);
      ExpectOneInt2(MakeIdentity(8, shape), RandomRaw(shape, 8));
    }
  }
}

TEST(RequantizeImage, EveryPathToInt2GivesTheSameBytesOnRealKv) {
  for (const char* name : {"/smollm2-135m", "/qwen2.5-coder-0.5b"}) {
    const auto fixture = Fixture::Load(TestDataFolder() + name);
    ASSERT_TRUE(fixture.ok()) << fixture.status().ToString();
    for (uint32_t block = 0; block < 2; ++block) {
      BlockIdentity identity = MakeIdentity(9, fixture->Shape(128, block == 0 ? 1 : 0, 32));
      SCOPED_TRACE(testing::Message() << name << ", block " << block);
      ExpectOneInt2(identity, fixture->RawBlock(block * 128, 128));
    }
  }
}

TEST(EncodeImage, ACrewThatSharesTheLayersGivesTheSameImages) {
  auto crew = LayerCrew::Make(3);
  ASSERT_TRUE(crew.ok());
  BlockShape shape = SmallShape(128);
  shape.layers = 64;  // large enough to be shared
  shape.nb = 32;
  const BlockIdentity identity = MakeIdentity(12, shape);
  std::vector<std::byte> raw = RandomRaw(shape, 12);
  ASSERT_GE(raw.size(), size_t{1} << 20);
  for (const bool with_raw_layer : {false, true}) {
    if (with_raw_layer) SpoilLayer(raw, shape, 5);
    for (const Codec* codec : AllCodecs()) {
      if (!codec->supports(StoredShape(codec->id, shape))) continue;
      const auto alone = EncodeOwned(*codec, identity, raw);
      const auto shared = EncodeOwned(*codec, identity, raw, crew->get());
      ASSERT_TRUE(alone.ok() && shared.ok());
      EXPECT_TRUE(std::ranges::equal(alone->bytes, shared->bytes)) << codec->name;
      if (!CanRequantize(codec->id, Int2(), shape)) continue;
      const auto alone_int2 = RequantizeOwned(alone->bytes, Int2(), identity);
      const auto shared_int2 = RequantizeOwned(alone->bytes, Int2(), identity, crew->get());
      ASSERT_TRUE(alone_int2.ok() && shared_int2.ok());
      EXPECT_TRUE(std::ranges::equal(alone_int2->bytes, shared_int2->bytes)) << codec->name;
    }
  }
  // What is wrong with one layer is found whoever had it.
  const auto image = EncodeOwned(Int4(), identity, raw);
  const auto view = ParseImage(image->bytes);
  ASSERT_TRUE(view.ok());
  const std::span<const std::byte> part = view->Parts(40).part[0];
  const_cast<std::byte&>(part[3]) ^= std::byte{1};
  EXPECT_EQ(RequantizeOwned(image->bytes, Int2(), identity, crew->get()).status().code(), Code::kDataLoss);
}

TEST(RequantizeImage, ACopyIsTheSameImage) {
  for (const Codec* codec : AllCodecs()) {
    const BlockIdentity identity = MakeIdentity(10, SmallShapeFor(*codec));
    const std::vector<std::byte> raw = RandomRaw(identity.shape, 10);
    const auto image = EncodeOwned(*codec, identity, raw);
    ASSERT_TRUE(image.ok());
    const auto copy = RequantizeOwned(image->bytes, *codec, identity);
    ASSERT_TRUE(copy.ok()) << copy.status().ToString();
    EXPECT_EQ(CopyOf(copy->bytes), CopyOf(image->bytes)) << codec->name;
  }
}

TEST(RequantizeImage, NeverDecodesAQuantizedBlock) {
  const BlockIdentity identity = MakeIdentity(11);
  const std::vector<std::byte> raw = RandomRaw(identity.shape, 11);
  const auto int2 = EncodeOwned(Int2(), identity, raw);
  ASSERT_TRUE(int2.ok());
  for (const Codec* codec : {&Raw16(), &RowOf(CodecId::kKv8), &Int4(), &K4V2()}) {
    EXPECT_FALSE(CanRequantize(CodecId::kKv2p, *codec, identity.shape));
    EXPECT_EQ(RequantizeOwned(int2->bytes, *codec, identity).status().code(), Code::kFailedPrecondition);
  }
}

/// What a decoder to fp16 makes of all layers, as a source (heads of K and V alike).
std::vector<std::byte> DecodedToFp16(const ImageView& image) {
  BlockShape shape = image.identity.shape;
  shape.dtype = DType::kFp16;
  std::vector<std::byte> decoded(RawBlockBytes(shape));
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    std::byte* base = decoded.data() + layer * RawLayerBytes(shape);
    const KvLayerView view = {.k = base,
                              .v = base + RawLayerBytes(shape) / 2,
                              .head_stride = int64_t{2} * shape.k_dim * shape.tokens,
                              .token_stride = int64_t{2} * shape.k_dim,
                              .channel_stride = 2};
    image.codec->decode(image.identity.shape, image.table[layer].planes, image.Parts(layer), view);
  }
  return decoded;
}

void ExpectSameLayers(const ImageView& image, const ImageView& expected) {
  ASSERT_EQ(image.table.size(), expected.table.size());
  for (size_t layer = 0; layer < image.table.size(); ++layer) {
    EXPECT_EQ(image.table[layer].planes, expected.table[layer].planes);
    EXPECT_EQ(image.table[layer].crc, expected.table[layer].crc);
    EXPECT_EQ(image.table[layer].error, expected.table[layer].error);
  }
}

TEST(RequantizeImage, LeavesKv8ByEncodingItsDecodedValues) {
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE5m2}) {
    BlockShape shape = SmallShape(37);
    shape.dtype = dtype;
    const BlockIdentity identity = MakeIdentity(20, shape);
    const std::vector<std::byte> raw = RandomRaw(identity.shape, 20);
    const auto kv8 = EncodeOwned(RowOf(CodecId::kKv8), identity, raw);
    ASSERT_TRUE(kv8.ok());
    BlockIdentity as_fp16 = identity;
    as_fp16.shape.dtype = DType::kFp16;
    const std::vector<std::byte> decoded = DecodedToFp16(*ParseImage(kv8->bytes));
    for (const Codec* codec : {&Int4(), &K4V2(), &Int2()}) {
      const auto requantized = RequantizeOwned(kv8->bytes, *codec, identity);
      ASSERT_TRUE(requantized.ok()) << requantized.status().ToString();
      const auto view = ParseImage(requantized->bytes);
      ASSERT_TRUE(view.ok() && VerifyImage(*view).ok());
      EXPECT_TRUE(MatchIdentity(*view, identity).ok()) << "the image keeps the type of its source";
      const auto direct = EncodeOwned(*codec, as_fp16, decoded);
      ExpectSameLayers(*view, *ParseImage(direct->bytes));
    }
    EXPECT_FALSE(CanRequantize(CodecId::kKv8, RowOf(RawCodecOf(dtype)), shape));
  }
}

TEST(RequantizeImage, LeavesKv8WithKAndVOfDifferentWidths) {
  BlockShape wide_v = SmallShape(16);
  wide_v.v_dim = 128;
  BlockShape wide_k = SmallShape(16);
  wide_k.k_dim = 128;
  for (const BlockShape& shape : {wide_v, wide_k}) {
    const BlockIdentity identity = MakeIdentity(21, shape);
    const std::vector<std::byte> raw = RandomRaw(shape, 21);
    const auto kv8 = EncodeOwned(RowOf(CodecId::kKv8), identity, raw);
    const auto direct = EncodeOwned(Int4(), identity, raw);
    ASSERT_TRUE(kv8.ok() && direct.ok());
    const auto requantized = RequantizeOwned(kv8->bytes, Int4(), identity);
    ASSERT_TRUE(requantized.ok());
    // 255 = 17 x 15: the codes are nearly those of a direct encoding, so the errors are too.
    const auto view = ParseImage(requantized->bytes), expected = ParseImage(direct->bytes);
    for (uint16_t layer = 0; layer < shape.layers; ++layer) {
      EXPECT_NEAR(view->KError(layer), expected->KError(layer), expected->KError(layer) * 0.05);
      EXPECT_NEAR(view->VError(layer), expected->VError(layer), expected->VError(layer) * 0.05);
    }
  }
}

TEST(RequantizeImage, ARawLayerOfKv8StaysRawOnItsWayDown) {
  const BlockIdentity identity = MakeIdentity(22);
  std::vector<std::byte> raw = RandomRaw(identity.shape, 22);
  SpoilLayer(raw, identity.shape, 1);
  const auto kv8 = EncodeOwned(RowOf(CodecId::kKv8), identity, raw);
  ASSERT_TRUE(kv8.ok());
  const auto int4 = RequantizeOwned(kv8->bytes, Int4(), identity);
  ASSERT_TRUE(int4.ok()) << int4.status().ToString();
  const auto view = ParseImage(int4->bytes);
  EXPECT_EQ(view->table[1].planes, kPlaneRaw);
  const uint64_t layer_bytes = RawLayerBytes(identity.shape);
  EXPECT_EQ(CopyOf(RawLayer(*view, 1)), CopyOf(std::span(raw).subspan(layer_bytes, layer_bytes)));
}

TEST(RequantizeImage, EncodesFp8FromItsValuesTimesTheScalesOfEachLayer) {
  for (const DType dtype : {DType::kE4m3, DType::kE5m2}) {
    BlockShape shape = SmallShape();
    shape.dtype = dtype;
    const BlockIdentity identity = MakeIdentity(23, shape);
    const std::vector<std::byte> raw = RandomRaw(shape, 23);
    const std::vector<Fp8Scales> scales = {{.k = 0.5f, .v = 2}, {.k = 0.01f, .v = 3}, {.k = 1, .v = 0.7f}};
    const auto raw8 = EncodeOwned(RowOf(CodecId::kRaw8), identity, raw);
    ASSERT_TRUE(raw8.ok());
    for (const CodecId id : {CodecId::kKv8, CodecId::kKv4p, CodecId::kKv2p}) {
      const auto direct = EncodeOwned(RowOf(id), identity, raw, nullptr, scales);
      const auto from_raw8 = RequantizeOwned(raw8->bytes, RowOf(id), identity, nullptr, scales);
      const auto unscaled = RequantizeOwned(raw8->bytes, RowOf(id), identity);
      ASSERT_TRUE(direct.ok() && from_raw8.ok() && unscaled.ok());
      EXPECT_EQ(CopyOf(from_raw8->bytes), CopyOf(direct->bytes));
      EXPECT_NE(CopyOf(unscaled->bytes), CopyOf(direct->bytes));
    }
  }
}

TEST(RequantizeImage, S44_FindsAFlippedBitInEveryPartThatItUses) {
  const BlockIdentity identity = MakeIdentity(12);
  const std::vector<std::byte> raw = RandomRaw(identity.shape, 12);
  struct Case {
    const Codec *from, *to;
    std::vector<Region> used;
  };
  const Case cases[] = {
      {&Raw16(), &Int4(), {Region::kBase}},
      {&Raw16(), &Raw16(), {Region::kBase}},
      {&RowOf(CodecId::kKv8), &Int4(), {Region::kBase}},
      {&RowOf(CodecId::kKv8), &RowOf(CodecId::kKv8), {Region::kBase}},
      {&Int4(), &K4V2(), {Region::kBase, Region::kKTail}},
      {&Int4(), &Int2(), {Region::kBase, Region::kKTail}},
      {&Int2(), &Int2(), {Region::kBase, Region::kBoost}},
      {&Int4(), &Int4(), {Region::kBase, Region::kKTail, Region::kVTail}},
  };
  for (const Case& c : cases) {
    const auto image = EncodeOwned(*c.from, identity, raw);
    ASSERT_TRUE(image.ok());
    const ImageLayout layout = ParseImage(image->bytes)->layout;
    for (Region region : c.used) {
      const ImageLayout::Part part = layout.layers[2][static_cast<int>(region)];
      image->bytes[part.offset + part.bytes / 2] ^= std::byte{64};
      EXPECT_EQ(RequantizeOwned(image->bytes, *c.to, identity).status().code(), Code::kDataLoss)
          << c.from->name << " to " << c.to->name << ", region " << static_cast<int>(region);
      image->bytes[part.offset + part.bytes / 2] ^= std::byte{64};
    }
    EXPECT_TRUE(RequantizeOwned(image->bytes, *c.to, identity).ok());
  }
}

}  // namespace
}  // namespace kvtier
