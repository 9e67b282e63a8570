// Every set of vector instructions that this CPU has gives the bytes of the portable body, from sections and
// into rows that end at pages nobody may touch.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <random>

#include "kernels/quantize.h"
#include "kernels/simd/dequantize_simd.h"
#include "kernels/simd/dispatch.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 77;

enum class Rung : uint8_t { kInt4, kK4V2, kInt2 };

std::string Describe(const BlockShape& s) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb);
}

/// The sections of one layer, each in memory of its own.
class Layer {
 public:
  explicit Layer(const BlockShape& shape) : shape_(shape) {
    const size_t heads = shape.kv_heads, rows = heads * PaddedTokens(shape);
    k_scale = Own(2 * heads * shape.k_dim);
    k_min = Own(2 * heads * shape.k_dim);
    v_scale = Own(rows * VGroups(shape));
    k_raw = Own(2 * heads * shape.nraw * shape.k_dim);
    v_raw = Own(2 * heads * shape.nraw * shape.v_dim);
    k_high = Own(rows * shape.k_dim / 4);
    v_high = Own(rows * shape.v_dim / 4);
    boost_ids = Own(heads * shape.nb);
    boost_low = Own(rows * shape.nb / 4);
    k_low = Own(rows * shape.k_dim / 4);
    v_low = Own(rows * shape.v_dim / 4);
  }

  PlaneSections<uint8_t> All() const {
    return {k_scale, k_min, v_scale, k_raw, v_raw, k_high, v_high, boost_ids, boost_low, k_low, v_low};
  }
  PlaneSections<const uint8_t> Of(Rung rung) const {
    PlaneSections<const uint8_t> sections = {k_scale, k_min,     v_scale,   k_raw, v_raw, k_high,
                                             v_high,  boost_ids, boost_low, k_low, v_low};
    if (rung != Rung::kInt4) sections.v_low = nullptr;
    if (rung == Rung::kInt2) sections.k_low = nullptr;
    if (rung != Rung::kInt2 || shape_.nb == 0) sections.boost_ids = sections.boost_low = nullptr;
    return sections;
  }

  void FillRandomly(std::mt19937& random) {
    for (GuardedMemory& memory : memory_)
      for (std::byte& byte : memory.span()) byte = static_cast<std::byte>(random());
  }
  /// What an encoder makes of normal values around 1.
  void Encode(std::mt19937& random) {
    std::normal_distribution<float> normal(1);
    std::vector<std::byte> raw(RawLayerBytes(shape_));
    for (size_t at = 0; at < raw.size(); at += 2) Store16(&raw[at], Fp16FromFp32(normal(random)));
    std::vector<RowErrors> errors(size_t{2} * shape_.kv_heads * shape_.tokens);
    QuantizeArgs args = {.shape = shape_,
                         .raw = raw.data(),
                         .out = All(),
                         .k_errors = errors.data(),
                         .v_errors = errors.data() + errors.size() / 2};
    if (shape_.nb == 0) args.out.boost_ids = args.out.boost_low = nullptr;
    LaunchSerial(QuantizeLaunch(shape_), [&](const SerialTeam& team) { Quantize(team, args); });
  }

  uint8_t *k_scale, *k_min, *v_scale, *k_raw, *v_raw, *k_high, *v_high, *boost_ids, *boost_low, *k_low,
      *v_low;

 private:
  uint8_t* Own(size_t bytes) {
    memory_.emplace_back(bytes, GuardedEnd::kBack);
    return reinterpret_cast<uint8_t*>(memory_.back().span().data());
  }
  BlockShape shape_;
  std::vector<GuardedMemory> memory_;
};

enum class Rows : uint8_t { kContiguous, kPaged, kSpacedChannels };

/// A destination for both K and V, ending at a guard page.
struct Destination {
  GuardedMemory memory;
  KvLayerView view;
  std::vector<int32_t> pages;

  Destination(const BlockShape& s, DType dtype, VForm form, Stores stores, Rows rows)
      : memory(Bytes(s, dtype, rows), GuardedEnd::kBack) {
    std::ranges::fill(memory.span(), std::byte{0xA5});
    const uint32_t element = DTypeBytes(dtype);
    const int64_t dim = std::max(s.k_dim, s.v_dim),
                  channel = rows == Rows::kSpacedChannels ? 2 * element : element;
    const int64_t row = dim * channel;
    view.channel_stride = channel;
    view.dtype = dtype;
    view.v_form = form;
    view.stores = stores;
    view.k = memory.span().data();
    if (rows == Rows::kPaged) {  // [page][K, V][slot][head][channel], pages backwards
      view.page_tokens = 16;
      for (int32_t page = PagesOf(s) - 1; page >= 0; --page) pages.push_back(page);
      view.page_table = pages.data();
      view.first_token = 5;
      view.head_stride = row;
      view.token_stride = row * s.kv_heads;
      view.page_stride = 2 * view.page_tokens * view.token_stride;
      view.v = view.k + view.page_tokens * view.token_stride;
    } else {
      view.token_stride = row;
      view.head_stride = row * s.tokens;
      view.v = view.k + view.head_stride * s.kv_heads;
    }
  }

 private:
  static int32_t PagesOf(const BlockShape& s) { return (s.tokens + 5 + 15) / 16; }
  static size_t Bytes(const BlockShape& s, DType dtype, Rows rows) {
    const size_t tokens = rows == Rows::kPaged ? size_t{16} * static_cast<size_t>(PagesOf(s)) : s.tokens;
    return 2 * tokens * s.kv_heads * std::max(s.k_dim, s.v_dim) * DTypeBytes(dtype) *
           (rows == Rows::kSpacedChannels ? 2 : 1);
  }
};

struct Case {
  DType dtype = DType::kFp16;
  VForm form = VForm::kPlain;
  Stores stores = Stores::kCached;
  Rows rows = Rows::kContiguous;
  Fp8Scales scales = {};
};
constexpr std::array kCases = {
    Case{},
    Case{.form = VForm::kRotated},
    Case{.stores = Stores::kStreaming, .rows = Rows::kPaged},
    Case{.form = VForm::kRotated, .stores = Stores::kStreaming},
    Case{.dtype = DType::kBf16},
    Case{.dtype = DType::kBf16, .form = VForm::kRotated, .rows = Rows::kPaged},
    Case{.dtype = DType::kBf16, .stores = Stores::kStreaming},
    Case{.dtype = DType::kFp32, .rows = Rows::kPaged},
    Case{.dtype = DType::kFp32, .form = VForm::kRotated, .stores = Stores::kStreaming},
    Case{.form = VForm::kRotated, .rows = Rows::kSpacedChannels},
    Case{.dtype = DType::kFp32, .rows = Rows::kSpacedChannels},
    Case{.dtype = DType::kE4m3, .scales = {.k = 0.37f, .v = 1}},
    Case{.dtype = DType::kE4m3, .form = VForm::kRotated, .rows = Rows::kPaged, .scales = {.k = 16, .v = 3}},
    Case{.dtype = DType::kE4m3, .rows = Rows::kSpacedChannels},
    Case{.dtype = DType::kE4m3, .scales = {.k = 0, .v = 1}},
    Case{.dtype = DType::kE5m2, .stores = Stores::kStreaming, .scales = {.k = 1, .v = 1e-20f}},
    Case{.dtype = DType::kE5m2, .form = VForm::kRotated, .rows = Rows::kPaged},
};

class SimdDecodeTest : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { LimitSimd(GetParam()); }
  void TearDown() override { LimitSimd(AvailableSimdLevels().back()); }

  static void ExpectPortableBytes(const BlockShape& shape, const Layer& layer) {
    for (const Rung rung : {Rung::kInt4, Rung::kK4V2, Rung::kInt2}) {
      for (const Case& c : kCases) {
        Destination expected(shape, c.dtype, c.form, c.stores, c.rows);
        expected.view.scales = c.scales;
        const DequantizeArgs portable = {.shape = shape, .in = layer.Of(rung), .out = expected.view};
        LaunchSerial(DequantizeLaunch(shape), [&](const SerialTeam& team) { Dequantize(team, portable); });
        Destination actual(shape, c.dtype, c.form, c.stores, c.rows);
        actual.view.scales = c.scales;
        DequantizeSimd({.shape = shape, .in = layer.Of(rung), .out = actual.view});
        ASSERT_TRUE(std::ranges::equal(expected.memory.span(), actual.memory.span()))
            << Describe(shape) << ", rung " << int(rung) << ", case " << &c - kCases.data();
      }
    }
  }
};

std::vector<BlockShape> Shapes() {
  std::vector<BlockShape> shapes;
  const auto add = [&](uint32_t heads, uint32_t k_dim, uint32_t v_dim, uint32_t tokens, uint32_t nraw,
                       uint32_t nb) {
    shapes.push_back({.layers = 1,
                      .kv_heads = static_cast<uint16_t>(heads),
                      .k_dim = static_cast<uint16_t>(k_dim),
                      .v_dim = static_cast<uint16_t>(v_dim),
                      .tokens = static_cast<uint16_t>(tokens),
                      .nraw = static_cast<uint8_t>(nraw),
                      .nb = static_cast<uint8_t>(nb)});
  };
  add(2, 128, 128, 128, 0, 64);
  add(3, 64, 64, 64, 1, 32);
  add(1, 256, 256, 37, 4, 252);
  add(1, 192, 192, 18, 1, 96);
  add(2, 80, 80, 10, 2, 40);
  add(2, 96, 96, 9, 3, 24);
  add(2, 128, 64, 7, 4, 128);
  add(1, 16, 256, 4, 4, 16);
  add(1, 64, 16, 5, 0, 64);
  for (uint32_t dim = 16; dim <= kMaxHeadDim; dim += 16)
    add(2, dim, 272 - dim, 4 + dim / 16, dim / 16 % 5, dim / 8 * 4 % 256);
  return shapes;
}

TEST_P(SimdDecodeTest, DecodesEncodedLayersAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (const BlockShape& shape : Shapes()) {
    Layer layer(shape);
    layer.Encode(random);
    ExpectPortableBytes(shape, layer);
  }
}

TEST_P(SimdDecodeTest, DecodesArbitraryBytesAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (const BlockShape& shape : Shapes()) {
    Layer layer(shape);
    layer.FillRandomly(random);
    ExpectPortableBytes(shape, layer);
  }
}

TEST_P(SimdDecodeTest, DecodesEveryScaleOfVAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  const BlockShape shape = {.layers = 1, .kv_heads = 1, .k_dim = 16, .v_dim = 80, .tokens = 128};
  Layer layer(shape);
  layer.FillRandomly(random);
  memset(layer.k_scale, 0, 2 * shape.k_dim);  // nothing about K that would need the portable body
  memset(layer.k_min, 0, 2 * shape.k_dim);
  for (uint32_t highest :
       {200u, 201u, 247u, 255u}) {  // up to where values overflow, beyond, and damaged ones
    for (uint32_t i = 0; i < 256; ++i) layer.v_scale[i] = static_cast<uint8_t>(std::min(i, highest));
    ExpectPortableBytes(shape, layer);
  }
}

TEST_P(SimdDecodeTest, RotatesTheLargestSumsBackAtEveryScaleOfVAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (const uint32_t v_dim : {64u, 128u, 256u}) {
    const BlockShape shape = {.layers = 1,
                              .kv_heads = 4,
                              .k_dim = 16,
                              .v_dim = static_cast<uint16_t>(v_dim),
                              .tokens = 128,
                              .nraw = 1};
    Layer layer(shape);
    layer.Encode(random);
    const uint32_t head_groups = 128 * VGroups(shape);
    // Of scales whose products are all normal; those and zero; all; those and the next smaller ones.
    const auto scale_of = [&](uint32_t group) -> uint32_t {
      const uint32_t head = group / head_groups;
      if (head == 1 && random() % 4 == 0) return 0;
      if (head == 2) return 1 + group % 200;
      return head == 3 ? 8 + group % 193 : 16 + group % 185;
    };
    for (uint32_t group = 0; group < 4 * head_groups; ++group) {
      layer.v_scale[group] = static_cast<uint8_t>(scale_of(group));
      if (group % 3 == 0) continue;  // keeps codes of an encoder
      // One row of H64 or its negative: a sum of which all terms are as large as can be, the others zero.
      uint8_t codes[kTileCodes];
      const uint32_t row = random() % 128;
      for (uint32_t i = 0; i < kTileCodes; ++i)
        codes[i] = std::popcount(row % 64 & i) % 2 == static_cast<int>(row / 64) ? 15 : 0;
      PackTile<kHighShift>(codes, kTileCodes, layer.v_high + group * kTileBytes);
    }
    ExpectPortableBytes(shape, layer);
  }
}

TEST_P(SimdDecodeTest, DecodesMinimaFarFromScalesAsThePortableBodyDoes) {
  const BlockShape shape = {.layers = 1, .kv_heads = 106, .k_dim = 64, .v_dim = 16, .tokens = 4, .nb = 32};
  std::mt19937 random(kSeed);
  Layer layer(shape);
  layer.Encode(random);
  // Exponents of a head's minima are those of its scales plus -24 .. 28; one sign a head.
  for (uint32_t head = 0; head < 106; ++head) {
    const int32_t apart = static_cast<int32_t>(head / 2) - 24;
    for (uint32_t c = 0; c < 64; ++c) {
      const int32_t least = std::max(1, 1 - apart), most = std::min(25, 29 - apart);
      const auto scale =
          static_cast<uint32_t>(least + static_cast<int32_t>(random() % 8) % (most - least + 1));
      const uint32_t minimum = scale + static_cast<uint32_t>(apart);
      Store16(layer.k_scale + 2 * (head * 64 + c), static_cast<uint16_t>(scale << 10 | random() % 1024));
      Store16(layer.k_min + 2 * (head * 64 + c),
              static_cast<uint16_t>(head % 2 << 15 | minimum << 10 | random() % 1024));
    }
  }
  ExpectPortableBytes(shape, layer);
}

TEST_P(SimdDecodeTest, KeepsTheSignsOfZerosOfTheReference) {
  const BlockShape shape = {.layers = 1, .kv_heads = 4, .k_dim = 64, .v_dim = 16, .tokens = 4, .nb = 32};
  std::mt19937 random(kSeed);
  Layer layer(shape);
  layer.Encode(random);
  constexpr std::array<uint16_t, 4> kScales = {0x3400, 0xb400, 0x8000, 0x0000};
  for (uint32_t i = 0; i < 4 * 64; ++i) {
    Store16(layer.k_scale + 2 * i, kScales[i / 64]);
    Store16(layer.k_min + 2 * i, static_cast<uint16_t>(i % 2 << 15));
  }
  ExpectPortableBytes(shape, layer);
}

TEST_P(SimdDecodeTest, DecodesRangesAtTheEdgesAsThePortableBodyDoes) {
  const BlockShape shape = {.layers = 1, .kv_heads = 8, .k_dim = 64, .v_dim = 16, .tokens = 8, .nb = 32};
  std::mt19937 random(kSeed);
  Layer layer(shape);
  layer.Encode(random);
  // Of each kind one head, so that one kind does not hide another: zero, subnormal, -0, extreme, beyond the
  // range, infinite, NaN, negative.
  constexpr std::array<uint16_t, 8> kScales = {0, 1, 0x0001, 0x6c00, 0x7bff, 0x7c00, 0x7e01, 0x8400};
  constexpr std::array<uint16_t, 8> kMinima = {0x3c01, 0x8001, 0x8000, 0xfbff, 0x7bff, 0, 0x3c00, 0x8400};
  for (uint32_t head = 0; head < 8; ++head) {
    for (uint32_t c = 0; c < 64; ++c) {
      Store16(layer.k_scale + 2 * (head * 64 + c), kScales[head]);
      Store16(layer.k_min + 2 * (head * 64 + c), kMinima[head]);
    }
  }
  ExpectPortableBytes(shape, layer);
}

TEST_P(SimdDecodeTest, TakesBoostIdsThatNoWriterMakes) {
  const BlockShape shape = {.layers = 1, .kv_heads = 4, .k_dim = 80, .v_dim = 16, .tokens = 8, .nb = 8};
  std::mt19937 random(kSeed);
  Layer layer(shape);
  layer.Encode(random);
  constexpr uint8_t kIds[4][8] = {{0, 1, 2, 3, 4, 5, 6, 79},     // as it should be
                                  {7, 6, 5, 4, 3, 2, 1, 0},      // descending
                                  {3, 3, 3, 3, 3, 3, 3, 3},      // one channel
                                  {0, 1, 2, 3, 4, 5, 80, 255}};  // beyond the head
  memcpy(layer.boost_ids, kIds, sizeof kIds);
  ExpectPortableBytes(shape, layer);
}

INSTANTIATE_TEST_SUITE_P(Levels, SimdDecodeTest,
                         testing::ValuesIn(AvailableSimdLevels().begin(), AvailableSimdLevels().end()),
                         [](const auto& info) {
                           std::string name(SimdLevelName(info.param));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvtier
