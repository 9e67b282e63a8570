// What every row of the codec table must do. A new codec is tested by being in the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "kernels/numerics.h"
#include "tests/codecs/codec_shapes.h"
#include "tests/codecs/encoded_layer.h"
#include "tests/codecs/engine_layouts.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

struct Spread {
  double k = 0, v = 0;
};
float Load32(const std::byte* source) {
  float value;
  std::memcpy(&value, source, sizeof value);
  return value;
}
/// Relative rms error of `decoded` (fp16 or fp32) against `raw`.
Spread MeasureError(const BlockShape& s, const Bytes& raw, const Bytes& decoded,
                    DType decoded_as = DType::kFp16) {
  const size_t k_elements = size_t{s.kv_heads} * s.tokens * s.k_dim;
  double error[2] = {}, square[2] = {};
  for (size_t i = 0; DTypeBytes(decoded_as) * i < decoded.size(); ++i) {
    const bool is_v = i >= k_elements;
    const double x = ValueOf(raw, i, s.dtype, is_v ? kScales.v : kScales.k);
    const double y =
        decoded_as == DType::kFp32 ? Load32(&decoded[4 * i]) : Fp32FromFp16(Load16(&decoded[2 * i]));
    error[is_v] += (x - y) * (x - y);
    square[is_v] += x * x;
  }
  return {std::sqrt(error[0] / square[0]), std::sqrt(error[1] / square[1])};
}

/// Relative rms errors that no shape of RandomRaw may exceed.
struct Bounds {
  double k, v;
};
Bounds BoundsOf(const Codec& codec) {
  switch (codec.precision) {
    case Precision::kInt2:
      return {.k = 0.4, .v = 1.3};
    case Precision::kK4V2:
      return {.k = 0.08, .v = 1.3};
    case Precision::kInt4:
      return {.k = 0.08, .v = 0.3};
    case Precision::kBits8:
      return {.k = 0.005, .v = 0.04};
    default:
      return {.k = 0, .v = 0};
  }
}

class CodecConformanceTest : public testing::TestWithParam<const Codec*> {
 protected:
  const Codec& codec() const { return *GetParam(); }
};

TEST_P(CodecConformanceTest, IsFoundByIdAndName) {
  EXPECT_EQ(FindCodec(codec().id), &codec());
  EXPECT_EQ(FindCodec(codec().name), &codec());
  EXPECT_FALSE(ShapesOf(codec()).empty());
}

TEST_P(CodecConformanceTest, RefusesShapesThatAreNotItsOwn) {
  const BlockShape good = ShapesOf(codec()).front();
  const auto refuses = [&](auto change) {
    BlockShape bad = good;
    change(bad);
    return !codec().supports(bad);
  };
  EXPECT_TRUE(refuses([](BlockShape& s) { s.layers = 0; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.kv_heads = 0; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.tokens = 0; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.tokens = 129; }));
  const bool has_planes = codec().precision < Precision::kBits8;
  EXPECT_EQ(refuses([](BlockShape& s) { s.tokens = 3, s.nraw = 0; }), has_planes) << "four tokens are a tile";
  EXPECT_TRUE(refuses([](BlockShape& s) { s.k_dim = 0; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.k_dim = 72; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.v_dim = 272; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.nraw = 5; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.nb = 6; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.nb = static_cast<uint8_t>(s.k_dim + 4); }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.dtype = DType::kFp32; }));
}

TEST_P(CodecConformanceTest, EncodingFillsExactlyItsPartsWhateverWasInThem) {
  for (const BlockShape& shape : ShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const Bytes raw = RandomRaw(shape);
    const EncodedLayer expected = EncodeLayer(codec(), shape, raw, kScales);
    for (const GuardedEnd end : {GuardedEnd::kFront, GuardedEnd::kBack}) {
      const GuardedMemory source(raw, end);
      std::vector<GuardedMemory> memory;
      LayerParts parts;
      for (int region = 0; region < kRegions; ++region) {
        memory.emplace_back(expected.part[region].size(), end);
        parts.part[region] = memory.back().span();
        std::ranges::fill(parts.part[region], std::byte{0x5A});
      }
      codec().encode(shape, {.raw = source.span(), .scales = kScales}, parts);
      for (int region = 0; region < kRegions; ++region)
        EXPECT_TRUE(std::ranges::equal(parts.part[region], expected.part[region])) << "region " << region;
    }
  }
}

TEST_P(CodecConformanceTest, TheStatedErrorsAreThoseOfWhatIsDecoded) {
  for (const BlockShape& shape : ShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const Bytes raw = RandomRaw(shape);
    const EncodedLayer layer = EncodeLayer(codec(), shape, raw, kScales);
    const bool is_raw = codec().id == CodecId::kRaw16 || codec().id == CodecId::kRaw8;
    // A raw source that is not fp16 already pays the rounding of the decoder's fp16 output.
    if (is_raw && shape.dtype != DType::kFp16) continue;
    // kv8 is measured before what a destination adds, the others with what fp16 does.
    const DType dtype = codec().id == CodecId::kKv8 ? DType::kFp32 : DType::kFp16;
    const Spread measured =
        MeasureError(shape, raw, DecodeLayer(codec(), layer, {.dtype = dtype, .scales = kScales}), dtype);
    if (is_raw) {
      EXPECT_EQ(measured.k, 0);
      EXPECT_EQ(measured.v, 0);
    }
    const bool has_four_bits = codec().precision >= Precision::kBits8;
    const bool has_k_low = has_four_bits || codec().planes & kPlaneKLow;
    const bool has_v_low = has_four_bits || codec().planes & kPlaneVLow;
    EXPECT_NEAR(has_k_low ? layer.error.k_int4 : layer.error.k_int2, measured.k, measured.k * 5e-4);
    EXPECT_NEAR(has_v_low ? layer.error.v_int4 : layer.error.v_int2, measured.v, measured.v * 5e-4);
    // Gaussian data around a mean of 2: what a range over the block gives, with room.
    const Bounds bounds = BoundsOf(codec());
    EXPECT_LE(measured.k, bounds.k);
    EXPECT_LE(measured.v, bounds.v);
    if (codec().precision < Precision::kBits8) {
      EXPECT_LE(layer.error.k_int4, layer.error.k_int2);
      EXPECT_LE(layer.error.v_int4, layer.error.v_int2);
    }
  }
}

TEST_P(CodecConformanceTest, KeepsItsBoundsFromOneTokenToTheMost) {
  const Bounds bounds = BoundsOf(codec());
  size_t lengths = 0;
  for (const DType dtype : {DType::kFp16, DType::kE4m3}) {
    for (uint16_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
      BlockShape shape = {
          .layers = 1, .kv_heads = 1, .k_dim = 32, .v_dim = 80, .tokens = tokens, .dtype = dtype};
      if (!codec().supports(shape)) continue;
      SCOPED_TRACE(Describe(shape));
      ++lengths;
      const Bytes raw = RandomRaw(shape);
      const EncodedLayer layer = EncodeLayer(codec(), shape, raw, kScales);
      const Bytes decoded = DecodeLayer(codec(), layer, {.dtype = DType::kFp16, .scales = kScales});
      ASSERT_EQ(decoded.size(), raw.size() / DTypeBytes(dtype) * 2);
      const Spread measured = MeasureError(shape, raw, decoded);
      const double rounding = dtype == DType::kFp16 ? 0 : 5e-4;  // of raw8's products to fp16
      EXPECT_LE(measured.k, bounds.k + rounding);
      EXPECT_LE(measured.v, bounds.v + rounding);
    }
  }
  EXPECT_GE(lengths, 125u);
}

TEST_P(CodecConformanceTest, DecodesArbitraryBytesWithoutLeavingItsMemory) {
  std::mt19937 random(kSeed);
  for (const BlockShape& shape : FewShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    for (const GuardedEnd end : {GuardedEnd::kFront, GuardedEnd::kBack}) {
      const uint8_t planes = EncodedPlanes(codec(), shape);
      std::vector<GuardedMemory> memory;
      ConstLayerParts parts;
      for (int region = 0; region < kRegions; ++region) {
        memory.emplace_back(PartBytes(codec().id, shape, planes, static_cast<Region>(region)), end);
        for (std::byte& byte : memory.back().span()) byte = static_cast<std::byte>(random());
        parts.part[region] = memory.back().span();
      }
      for (const Destination& to : Destinations()) {
        const EngineLayout layout = EngineLayouts(shape, DTypeBytes(to.dtype)).front();
        const GuardedMemory out(layout.bytes, end);
        KvLayerView view = layout.View(out.span().data(), to.dtype);
        view.v_form = to.v_form;
        codec().decode(shape, planes, parts, view);
      }
    }
  }
}

TEST_P(CodecConformanceTest, ARawLayerInItsImageIsCopied) {
  for (BlockShape shape : ShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    Bytes raw = RandomRaw(shape);
    raw[DTypeBytes(shape.dtype) - 1] = std::byte{0x7f};  // not finite: why a layer is kept raw
    if (shape.dtype != DType::kE4m3 && shape.dtype != DType::kE5m2) raw[0] = std::byte{0x80};
    ASSERT_FALSE(LayerIsFinite(shape, {.raw = raw}));
    EncodedLayer layer{.shape = shape, .planes = kPlaneRaw, .part = {}, .error = {}, .codec = codec().id};
    layer.part[0] = raw;
    layer.part[0].resize(PartBytes(codec().id, shape, kPlaneRaw, Region::kBase));
    for (const Region region : {Region::kBoost, Region::kKTail, Region::kVTail})
      EXPECT_EQ(PartBytes(codec().id, shape, kPlaneRaw, region), 0u);
    EXPECT_EQ(DecodeLayer(codec(), layer, shape.dtype), raw);
  }
}

TEST_P(CodecConformanceTest, CutsGiveTheBytesOfADirectEncoding) {
  for (const Codec* to : AllCodecs()) {
    if (!CanCut(codec().id, to->id)) continue;
    for (const BlockShape& shape : ShapesOf(codec())) {
      SCOPED_TRACE(std::string(to->name) + " " + Describe(shape));
      const Bytes raw = RandomRaw(shape);
      const EncodedLayer cut = CutLayer(EncodeLayer(codec(), shape, raw, kScales), *to),
                         direct = EncodeLayer(*to, shape, raw, kScales);
      EXPECT_TRUE(cut.part == direct.part);
      EXPECT_EQ(cut.error.k_int2, direct.error.k_int2);
      EXPECT_EQ(cut.error.v_int2, direct.error.v_int2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, CodecConformanceTest,
                         testing::ValuesIn(AllCodecs().begin(), AllCodecs().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(CodecTableTest, IsOrderedByIdWithoutDuplicates) {
  for (size_t i = 1; i < AllCodecs().size(); ++i) EXPECT_LT(AllCodecs()[i - 1]->id, AllCodecs()[i]->id);
  EXPECT_EQ(FindCodec(CodecId::kNone), nullptr);
  EXPECT_EQ(FindCodec(static_cast<CodecId>(200)), nullptr);
  EXPECT_EQ(FindCodec("q4_0"), nullptr);
}

TEST(CodecTableTest, CutsGoDownTheLadderOnly) {
  using enum CodecId;
  std::set<std::pair<CodecId, CodecId>> allowed = {{kKv4p, kKv42}, {kKv4p, kKv2p}, {kKv42, kKv2p}};
  for (const Codec* from : AllCodecs())
    for (const Codec* to : AllCodecs())
      EXPECT_EQ(CanCut(from->id, to->id), from == to || allowed.contains({from->id, to->id}));
}

TEST(GatherBoostTest, IsSafeOnArbitraryScalesAndPlanes) {
  std::mt19937 random(kSeed);
  const BlockShape shape = {.layers = 1, .kv_heads = 2, .k_dim = 256, .v_dim = 16, .tokens = 9, .nb = 100};
  const uint8_t planes = kPlaneKLow;
  for (int round = 0; round < 20; ++round) {
    ConstLayerParts in;
    std::vector<GuardedMemory> memory;
    for (const Region region : {Region::kBase, Region::kKTail}) {
      memory.emplace_back(PartBytes(CodecId::kKv42, shape, planes, region), GuardedEnd::kBack);
      for (std::byte& byte : memory.back().span()) byte = static_cast<std::byte>(random());
      in.part[static_cast<int>(region)] = memory.back().span();
    }
    const GuardedMemory boost(PartBytes(CodecId::kKv2p, shape, kPlaneBoost, Region::kBoost),
                              GuardedEnd::kBack);
    GatherBoost(shape, in, boost.span());
    for (uint32_t head = 0; head < shape.kv_heads; ++head)
      for (uint32_t i = 1; i < shape.nb; ++i)
        ASSERT_LT(boost.span()[head * shape.nb + i - 1], boost.span()[head * shape.nb + i]) << "ids ascend";
  }
}

}  // namespace
}  // namespace kvtier
