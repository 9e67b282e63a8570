// What every row of the codec table must do. A new codec is tested by being in the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <tuple>

#include "kernels/numerics.h"
#include "kernels/source_rows.h"
#include "kernels/tile.h"
#include "tests/codecs/encoded_layer.h"
#include "tests/codecs/engine_layouts.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 12345;
constexpr const char* kDTypeNames[] = {"?", "fp16", "bf16", "e4m3", "e5m2", "fp32"};
/// Of FP8 sources and destinations.
constexpr Fp8Scales kScales = {.k = 0.125f, .v = 0.01f};

/// Every head dimension that engines have, the narrowest and odd ones, K and V alike and not.
std::vector<BlockShape> Shapes() {
  std::vector<BlockShape> shapes;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}) {
    const auto add = [&](uint16_t heads, uint16_t k_dim, uint16_t v_dim, uint16_t tokens) {
      shapes.push_back(
          {.layers = 1, .kv_heads = heads, .k_dim = k_dim, .v_dim = v_dim, .tokens = tokens, .dtype = dtype});
    };
    add(2, 128, 128, 128);
    add(3, 64, 64, 64);
    add(1, 80, 80, 37);
    add(2, 96, 192, 18);
    add(1, 192, 96, 7);
    add(2, 16, 256, 4);
    add(1, 256, 48, 126);
    add(5, 48, 16, 1);
  }
  return shapes;
}

/// Boosted channels: none, few, an eighth, a quarter, half, as many as can be named.
std::vector<uint32_t> Boosts(uint32_t k_dim) {
  return {0, 4, k_dim / 32 * 4, k_dim / 16 * 4, k_dim / 8 * 4, std::min<uint32_t>(k_dim, 252)};
}

/// Every shape that `codec` supports: each count of raw rows with another boost, where it has them.
std::vector<BlockShape> ShapesOf(const Codec& codec) {
  std::vector<BlockShape> supported;
  const std::vector<BlockShape> shapes = Shapes();
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::vector<uint32_t> boosts = Boosts(shapes[i].k_dim);
    for (size_t variant = 0; variant < boosts.size(); ++variant) {
      BlockShape shape = shapes[i];
      shape.nraw = static_cast<uint8_t>((variant + i) % (kMaxRawRows + 1));
      shape.nb = static_cast<uint8_t>(boosts[variant]);
      if (!codec.supports(shape)) shape.nb = 0;
      if (!codec.supports(shape)) shape.nraw = 0;
      if (codec.supports(shape)) supported.push_back(shape);
    }
  }
  std::ranges::sort(supported, {}, [](const BlockShape& s) {
    return std::tuple(s.kv_heads, s.k_dim, s.dtype, s.nraw, s.nb);
  });
  const auto repeated = std::ranges::unique(supported);
  supported.erase(repeated.begin(), repeated.end());
  return supported;
}

/// One variant of each: for sweeps over layouts and destinations.
std::vector<BlockShape> FewShapesOf(const Codec& codec) {
  std::vector<BlockShape> few;
  for (BlockShape shape : Shapes()) {
    for (const bool has_extras : {true, false}) {
      shape.nraw = has_extras ? 1 : 0;
      shape.nb = has_extras && codec.precision < Precision::kBits8 ? shape.k_dim / 8 * 4 : 0;
      if (!codec.supports(shape)) continue;
      few.push_back(shape);
      break;
    }
  }
  return few;
}

std::string Describe(const BlockShape& s) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb) + " " + kDTypeNames[static_cast<int>(s.dtype)];
}

/// Element `index` of `raw`.
float ValueOf(const Bytes& raw, size_t index, DType dtype, float scale) {
  float value = 0;
  LoadTile(&raw[index * DTypeBytes(dtype)], dtype, scale, 1, &value);
  return value;
}

/// Numbers around a mean of 2, in the dtype of the shape.
Bytes RandomRaw(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  const size_t bytes = DTypeBytes(shape.dtype),
               k_elements = size_t{shape.kv_heads} * shape.tokens * shape.k_dim;
  Bytes raw(RawLayerBytes(shape));
  for (size_t i = 0; i * bytes < raw.size(); ++i) {
    const float value = normal(random) + static_cast<float>(i % 5);
    const float scale = i < k_elements ? kScales.k : kScales.v;
    std::byte* element = &raw[i * bytes];
    switch (shape.dtype) {
      case DType::kBf16:
        Store16(element, Bf16FromFp32(value));
        break;
      case DType::kE4m3:
        *element = static_cast<std::byte>(E4m3FromFp32(value / scale));
        break;
      case DType::kE5m2:
        *element = static_cast<std::byte>(E5m2FromFp32(value / scale));
        break;
      default:
        Store16(element, Fp16FromFp32(value));
    }
  }
  return raw;
}

struct Spread {
  double k = 0, v = 0;
};
/// Relative rms error of `decoded` (fp16) against `raw`.
Spread MeasureError(const BlockShape& s, const Bytes& raw, const Bytes& decoded) {
  const size_t k_elements = size_t{s.kv_heads} * s.tokens * s.k_dim;
  double error[2] = {}, square[2] = {};
  for (size_t i = 0; 2 * i < decoded.size(); ++i) {
    const bool is_v = i >= k_elements;
    const double x = ValueOf(raw, i, s.dtype, is_v ? kScales.v : kScales.k);
    const double y = Fp32FromFp16(Load16(&decoded[2 * i]));
    error[is_v] += (x - y) * (x - y);
    square[is_v] += x * x;
  }
  return {std::sqrt(error[0] / square[0]), std::sqrt(error[1] / square[1])};
}

/// What decoders write: types and forms of V.
std::vector<Destination> Destinations() {
  std::vector<Destination> destinations;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2, DType::kFp32})
    for (const VForm form : {VForm::kPlain, VForm::kRotated})
      destinations.push_back({.dtype = dtype, .scales = kScales, .v_form = form});
  return destinations;
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

/// Whether `element` is `value` in the type of a destination.
bool IsRounded(float value, float scale, DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::kFp16:
      return Load16(element) == Fp16FromFp32(value);
    case DType::kBf16:
      return Load16(element) == Bf16FromFp32(value);
    case DType::kE4m3:
      return *element == static_cast<std::byte>(E4m3FromFp32(value / scale));
    default:
      return *element == static_cast<std::byte>(E5m2FromFp32(value / scale));
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
    const Spread measured =
        MeasureError(shape, raw, DecodeLayer(codec(), layer, {.dtype = DType::kFp16, .scales = kScales}));
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

TEST_P(CodecConformanceTest, EveryDestinationTypeHasTheValuesOfFp32Rounded) {
  for (const BlockShape& shape : FewShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const EncodedLayer layer = EncodeLayer(codec(), shape, RandomRaw(shape), kScales);
    const size_t k_elements = size_t{shape.kv_heads} * shape.tokens * shape.k_dim;
    for (const VForm form : {VForm::kPlain, VForm::kRotated}) {
      const Bytes wide =
          DecodeLayer(codec(), layer, {.dtype = DType::kFp32, .scales = kScales, .v_form = form});
      for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}) {
        const Bytes narrow = DecodeLayer(codec(), layer, {.dtype = dtype, .scales = kScales, .v_form = form});
        size_t wrong = 0;
        for (size_t i = 0; 4 * i < wide.size(); ++i) {
          float value = 0;
          memcpy(&value, &wide[4 * i], sizeof value);
          const float scale = i < k_elements ? kScales.k : kScales.v;
          wrong += !IsRounded(value, scale, dtype, &narrow[i * DTypeBytes(dtype)]);
        }
        EXPECT_EQ(wrong, 0u) << kDTypeNames[static_cast<int>(dtype)];
      }
    }
  }
}

TEST_P(CodecConformanceTest, RotatedVTurnedBackIsPlainV) {
  for (const BlockShape& shape : FewShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const EncodedLayer layer = EncodeLayer(codec(), shape, RandomRaw(shape), kScales);
    const auto decode = [&](VForm form) {
      const Bytes bytes =
          DecodeLayer(codec(), layer, {.dtype = DType::kFp32, .scales = kScales, .v_form = form});
      std::vector<float> values(bytes.size() / sizeof(float));
      memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    };
    const std::vector<float> plain = decode(VForm::kPlain);
    std::vector<float> back = decode(VForm::kRotated);
    const size_t k_elements = size_t{shape.kv_heads} * shape.tokens * shape.k_dim;
    for (size_t row = k_elements; row < back.size(); row += shape.v_dim)
      RotateGroups(&back[row], shape.v_dim);
    double square = 0, off = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      square += double{plain[i]} * plain[i];
      off += (double{plain[i]} - back[i]) * (double{plain[i]} - back[i]);
    }
    EXPECT_LE(std::sqrt(off / square), 1e-6);
  }
}

TEST_P(CodecConformanceTest, DecodesIntoEveryLayoutAndTouchesNothingElse) {
  for (const BlockShape& shape : FewShapesOf(codec())) {
    const EncodedLayer layer = EncodeLayer(codec(), shape, RandomRaw(shape), kScales);
    for (const Destination& to : Destinations()) {
      const Bytes expected = DecodeLayer(codec(), layer, to);
      const size_t element_bytes = DTypeBytes(to.dtype);
      for (const EngineLayout& layout : EngineLayouts(shape, DTypeBytes(to.dtype))) {
        SCOPED_TRACE(Describe(shape) + " into " + layout.name + " " +
                     kDTypeNames[static_cast<int>(to.dtype)]);
        const GuardedMemory memory(layout.bytes, GuardedEnd::kBack);
        const std::span<std::byte> bytes = memory.span();
        std::ranges::fill(bytes, std::byte{0xA5});
        KvLayerView view = layout.View(bytes.data(), to.dtype);
        view.scales = to.scales;
        view.v_form = to.v_form;
        codec().decode(shape, layer.planes, layer.View(), view);

        size_t at = 0;
        bool is_equal = true;
        const auto compare = [&](std::byte* base, uint32_t dim) {
          for (uint32_t head = 0; head < shape.kv_heads; ++head) {
            for (uint32_t token = 0; token < shape.tokens; ++token) {
              for (uint32_t c = 0; c < dim; ++c, at += element_bytes) {
                std::byte* element = base + view.Row(head, token) + c * view.channel_stride;
                is_equal &= memcmp(element, &expected[at], element_bytes) == 0;
                memset(element, 0xA5, element_bytes);  // for the check of the rest
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
