// What every row of the codec table must do. A new codec is tested by being in the table.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "kernels/numerics.h"
#include "tests/codecs/encoded_layer.h"
#include "tests/codecs/engine_layouts.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 12345;

std::vector<BlockShape> Shapes() {
  std::vector<BlockShape> shapes;
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    shapes.push_back({.layers = 1, .kv_heads = 2, .k_dim = 128, .v_dim = 128, .tokens = 128, .dtype = dtype});
    shapes.push_back({.layers = 1, .kv_heads = 3, .k_dim = 64, .v_dim = 64, .tokens = 64, .dtype = dtype});
    shapes.push_back({.layers = 1, .kv_heads = 1, .k_dim = 80, .v_dim = 80, .tokens = 37, .dtype = dtype});
    shapes.push_back({.layers = 1, .kv_heads = 2, .k_dim = 16, .v_dim = 256, .tokens = 4, .dtype = dtype});
    shapes.push_back({.layers = 1, .kv_heads = 1, .k_dim = 256, .v_dim = 48, .tokens = 126, .dtype = dtype});
    shapes.push_back({.layers = 1, .kv_heads = 5, .k_dim = 48, .v_dim = 16, .tokens = 1, .dtype = dtype});
  }
  return shapes;
}

/// Every shape that `codec` supports, with and without raw rows and boost where it has them.
std::vector<BlockShape> ShapesOf(const Codec& codec) {
  std::vector<BlockShape> supported;
  for (BlockShape shape : Shapes()) {
    for (const uint8_t nraw : {0, 1, 4}) {
      for (const uint32_t nb : {0u, 4u, shape.k_dim / 8 * 4u, std::min<uint32_t>(shape.k_dim, 252)}) {
        shape.nraw = nraw;
        shape.nb = static_cast<uint8_t>(nb);
        if (codec.supports(shape)) supported.push_back(shape);
      }
    }
  }
  return supported;
}

std::string Describe(const BlockShape& s) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb) + (s.dtype == DType::kBf16 ? " bf16" : " fp16");
}

float Wide(uint16_t bits, DType dtype) {
  return dtype == DType::kBf16 ? Fp32FromBf16(bits) : Fp32FromFp16(bits);
}

Bytes RandomRaw(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  Bytes raw(RawLayerBytes(shape));
  for (size_t at = 0; at < raw.size(); at += 2) {
    const float value = normal(random) + static_cast<float>(at / 2 % 5);
    Store16(&raw[at], shape.dtype == DType::kBf16 ? Bf16FromFp32(value) : Fp16FromFp32(value));
  }
  return raw;
}

struct Spread {
  double k = 0, v = 0;
};
/// Relative rms error of `decoded` (fp16) against `raw`.
Spread MeasureError(const BlockShape& s, const Bytes& raw, const Bytes& decoded) {
  const size_t k_bytes = size_t{2} * s.kv_heads * s.tokens * s.k_dim;
  double error[2] = {}, square[2] = {};
  for (size_t at = 0; at < raw.size(); at += 2) {
    const double x = Wide(Load16(&raw[at]), s.dtype), y = Fp32FromFp16(Load16(&decoded[at]));
    error[at >= k_bytes] += (x - y) * (x - y);
    square[at >= k_bytes] += x * x;
  }
  return {std::sqrt(error[0] / square[0]), std::sqrt(error[1] / square[1])};
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
  EXPECT_TRUE(refuses([](BlockShape& s) { s.k_dim = 0; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.k_dim = 72; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.v_dim = 272; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.nraw = 5; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.nb = 6; }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.nb = static_cast<uint8_t>(s.k_dim + 4); }));
  EXPECT_TRUE(refuses([](BlockShape& s) { s.dtype = DType::kE4m3; }));
}

TEST_P(CodecConformanceTest, EncodingFillsExactlyItsPartsWhateverWasInThem) {
  for (const BlockShape& shape : ShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const Bytes raw = RandomRaw(shape);
    const EncodedLayer expected = EncodeLayer(codec(), shape, raw);
    for (const GuardedEnd end : {GuardedEnd::kFront, GuardedEnd::kBack}) {
      const GuardedMemory source(raw, end);
      std::vector<GuardedMemory> memory;
      LayerParts parts;
      for (int region = 0; region < kRegions; ++region) {
        memory.emplace_back(expected.part[region].size(), end);
        parts.part[region] = memory.back().span();
        std::ranges::fill(parts.part[region], std::byte{0x5A});
      }
      codec().encode(shape, {.raw = source.span()}, parts);
      for (int region = 0; region < kRegions; ++region)
        EXPECT_TRUE(std::ranges::equal(parts.part[region], expected.part[region])) << "region " << region;
    }
  }
}

TEST_P(CodecConformanceTest, TheStatedErrorsAreThoseOfWhatIsDecoded) {
  for (const BlockShape& shape : ShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const Bytes raw = RandomRaw(shape);
    const EncodedLayer layer = EncodeLayer(codec(), shape, raw);
    const bool has_k_low = codec().planes & kPlaneKLow, has_v_low = codec().planes & kPlaneVLow;
    const double k_stated = has_k_low ? layer.error.k_int4 : layer.error.k_int2;
    const double v_stated = has_v_low ? layer.error.v_int4 : layer.error.v_int2;
    // A source that is not fp16 already pays the rounding of the decoder's fp16 output.
    if (codec().precision == Precision::kBits16 && shape.dtype != DType::kFp16) continue;
    const Spread measured = MeasureError(shape, raw, DecodeLayer(codec(), layer, DType::kFp16));
    EXPECT_NEAR(k_stated, measured.k, measured.k * 1e-5);
    EXPECT_NEAR(v_stated, measured.v, measured.v * 1e-5);
    EXPECT_LE(layer.error.k_int4, layer.error.k_int2);
    EXPECT_LE(layer.error.v_int4, layer.error.v_int2);
    if (codec().precision == Precision::kBits16) {
      EXPECT_EQ(measured.k, 0);
      EXPECT_EQ(measured.v, 0);
    } else {
      // Gaussian data around a mean of 2: what a range over the block gives, with room.
      EXPECT_LT(layer.error.k_int4, 0.08);
      EXPECT_LT(layer.error.k_int2, 0.4);
      EXPECT_LT(layer.error.v_int4, 0.3);
      EXPECT_LT(layer.error.v_int2, 1.2);
    }
  }
}

TEST_P(CodecConformanceTest, DecodesIntoEveryLayoutAndTouchesNothingElse) {
  for (const BlockShape& shape : ShapesOf(codec())) {
    const EncodedLayer layer = EncodeLayer(codec(), shape, RandomRaw(shape));
    for (const DType dtype : {DType::kFp16, DType::kBf16}) {
      const Bytes expected = DecodeLayer(codec(), layer, dtype);
      for (const EngineLayout& layout : EngineLayouts(shape)) {
        SCOPED_TRACE(Describe(shape) + " into " + layout.name);
        const GuardedMemory memory(layout.bytes, GuardedEnd::kBack);
        const std::span<std::byte> bytes = memory.span();
        std::ranges::fill(bytes, std::byte{0xA5});
        const KvLayerView view = layout.View(bytes.data(), dtype);
        codec().decode(shape, layer.planes, layer.View(), view);

        size_t at = 0;
        bool is_equal = true;
        const auto compare = [&](std::byte* base, uint32_t dim) {
          for (uint32_t head = 0; head < shape.kv_heads; ++head) {
            for (uint32_t token = 0; token < shape.tokens; ++token) {
              for (uint32_t c = 0; c < dim; ++c, at += 2) {
                std::byte* element = base + view.Row(head, token) + c * view.channel_stride;
                is_equal &= memcmp(element, &expected[at], 2) == 0;
                Store16(element, 0xA5A5);  // for the check of the rest
              }
            }
          }
        };
        compare(view.k, shape.k_dim);
        compare(view.v, shape.v_dim);
        EXPECT_TRUE(is_equal);
        EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0xA5}; }));
      }
    }
  }
}

TEST_P(CodecConformanceTest, DecodesArbitraryBytesWithoutLeavingItsMemory) {
  std::mt19937 random(kSeed);
  for (const BlockShape& shape : ShapesOf(codec())) {
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
      const EngineLayout layout = EngineLayouts(shape).front();
      const GuardedMemory out(layout.bytes, end);
      codec().decode(shape, planes, parts, layout.View(out.span().data(), DType::kFp16));
      codec().decode(shape, planes, parts, layout.View(out.span().data(), DType::kBf16));
    }
  }
}

TEST_P(CodecConformanceTest, ARawLayerInItsImageIsCopied) {
  for (BlockShape shape : ShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    Bytes raw = RandomRaw(shape);
    Store16(raw.data(),
            shape.dtype == DType::kBf16 ? 0x7f80 : 0x7c00);  // an infinity: why a layer is kept raw
    EncodedLayer layer{.shape = shape, .planes = kPlaneRaw, .part = {}, .error = {}};
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
      const EncodedLayer cut = CutLayer(EncodeLayer(codec(), shape, raw), *to),
                         direct = EncodeLayer(*to, shape, raw);
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
