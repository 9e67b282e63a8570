// kv8 on every set of vector instructions that this CPU has: the bytes of the portable body both ways, and
// its errors to the last place of the fp16 that keeps them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>

#include "kernels/fp8.h"
#include "kernels/simd/kv8_simd.h"
#include "kernels/team.h"
#include "tests/codecs/guarded_memory.h"
#include "tests/support/simd_level_test.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 88;

/// The sections of one layer, each in memory of its own.
class Layer {
 public:
  explicit Layer(const BlockShape& s) : shape_(s) {
    const size_t heads = s.kv_heads, rows = heads * s.tokens;
    sections_ = {.k_scale = Own(2 * heads * s.k_dim),
                 .k_min = Own(2 * heads * s.k_dim),
                 .v_scale = Own(2 * rows),
                 .k_raw = Own(2 * heads * s.nraw * s.k_dim),
                 .v_raw = Own(2 * heads * s.nraw * s.v_dim),
                 .k_codes = Own(rows * s.k_dim),
                 .v_codes = Own(rows * s.v_dim)};
  }
  QuantizeKv8Args From(std::span<const std::byte> raw) const {
    return {.source = {.shape = shape_, .raw = raw.data(), .scales = {.k = 0.37f, .v = 3}}, .out = sections_};
  }
  DequantizeKv8Args To(const KvLayerView& out) const {
    const Kv8Sections<uint8_t>& s = sections_;
    return {.shape = shape_,
            .in = {.k_scale = s.k_scale,
                   .k_min = s.k_min,
                   .v_scale = s.v_scale,
                   .k_raw = s.k_raw,
                   .v_raw = s.v_raw,
                   .k_codes = s.k_codes,
                   .v_codes = s.v_codes},
            .out = out};
  }
  void FillRandomly(std::mt19937& random) {
    for (GuardedMemory& memory : memory_)
      for (std::byte& byte : memory.span()) byte = static_cast<std::byte>(random());
  }
  bool HasBytesOf(const Layer& other) const {
    for (size_t i = 0; i < memory_.size(); ++i)
      if (!std::ranges::equal(memory_[i].span(), other.memory_[i].span())) return false;
    return true;
  }

 private:
  uint8_t* Own(size_t bytes) {
    memory_.emplace_back(bytes, GuardedEnd::kBack);
    return reinterpret_cast<uint8_t*>(memory_.back().span().data());
  }
  BlockShape shape_;
  std::vector<GuardedMemory> memory_;
  Kv8Sections<uint8_t> sections_;
};

double Relative(const Kv8RowErrors& sum) {
  return sum.error == 0 ? 0 : std::sqrt(sum.error / sum.square);
}

std::vector<BlockShape> Shapes() {
  std::vector<BlockShape> shapes;
  for (uint32_t dim = 16; dim <= kMaxHeadDim; dim += 16) {
    const uint32_t tokens = 1 + dim * 37 % 128;
    const bool is_even = dim / 16 % 2 == 0;
    for (const DType dtype : {is_even ? DType::kFp16 : DType::kBf16, is_even ? DType::kE5m2 : DType::kE4m3})
      shapes.push_back({.layers = 1,
                        .kv_heads = static_cast<uint16_t>(1 + dim / 32 % 2),
                        .k_dim = static_cast<uint16_t>(dim),
                        .v_dim = static_cast<uint16_t>(272 - dim),
                        .tokens = static_cast<uint16_t>(tokens),
                        .dtype = dtype,
                        .nraw = static_cast<uint8_t>(std::min(tokens, dim / 16 % 5))});
  }
  return shapes;
}

/// Kinds of elements, by index: normal, normal far from zero, any finite bits, subnormals, signed zeros,
/// ends.
constexpr uint32_t kKinds = 6;
std::vector<std::byte> RawFp8(const BlockShape& shape, uint32_t kind, std::mt19937& random) {
  const bool is_e4m3 = shape.dtype == DType::kE4m3;
  const uint32_t limit = is_e4m3 ? kFp8Nan : kE5m2Infinity - 7u;  // times 3 it stays in the range of fp16
  std::normal_distribution<float> normal(kind == 1 ? 50 : 0);
  std::vector<std::byte> raw(RawLayerBytes(shape));
  for (std::byte& element : raw) {
    uint32_t bits = random();
    if (kind < 2) {
      const float value = normal(random);
      bits = is_e4m3 ? E4m3FromFp32(value) : E5m2FromFp32(value);
    } else if (kind == 2) {
      bits = (bits & 0x80) | (bits & 0x7f) % limit;
    } else if (kind == 3) {
      bits &= 0x83;
    } else {
      bits = (bits & 0x80) | (kind == 4 ? 0 : limit - 1);
    }
    element = static_cast<std::byte>(bits);
  }
  return raw;
}
std::vector<std::byte> Raw(const BlockShape& shape, uint32_t kind, std::mt19937& random) {
  if (IsFp8(shape.dtype)) return RawFp8(shape, kind, random);
  const bool is_bf16 = shape.dtype == DType::kBf16;
  const uint32_t limit = is_bf16 ? kBf16AboveFp16 : kFp16Infinity;
  std::normal_distribution<float> normal(kind == 1 ? 50 : 0);
  std::vector<std::byte> raw(RawLayerBytes(shape));
  for (size_t at = 0; at < raw.size(); at += 2) {
    uint32_t bits = random();
    if (kind < 2) {
      const float value = normal(random);
      bits = is_bf16 ? Bf16FromFp32(value) : Fp16FromFp32(value);
    } else if (kind == 2) {
      bits = (bits & 0x8000) | (bits & 0x7fff) % limit;
    } else if (kind == 3) {
      bits &= 0x83ff;
    } else {
      bits = (bits & 0x8000) | (kind == 4 ? 0 : limit - 1);
    }
    Store16(&raw[at], static_cast<uint16_t>(bits));
  }
  return raw;
}

class SimdKv8Test : public SimdLevelTest {
 protected:
  static void ExpectSameDecoding(const BlockShape& s, const Layer& layer, DType dtype, VForm form,
                                 Stores stores) {
    const int64_t row = int64_t{DTypeBytes(dtype)} * std::max(s.k_dim, s.v_dim);
    const GuardedMemory expected(static_cast<size_t>(2 * row * s.kv_heads * s.tokens), GuardedEnd::kBack);
    const GuardedMemory actual(expected.span().size(), GuardedEnd::kBack);
    const auto view = [&](const GuardedMemory& memory) {
      std::ranges::fill(memory.span(), std::byte{0xA5});
      KvLayerView out;
      out.k = memory.span().data();
      out.v = out.k + row * s.kv_heads * s.tokens;
      out.channel_stride = DTypeBytes(dtype);
      out.token_stride = row;
      out.head_stride = row * s.tokens;
      out.dtype = dtype;
      out.scales = {.k = 0.37f, .v = 3};
      out.v_form = form;
      out.stores = stores;
      return out;
    };
    const DequantizeKv8Args portable = layer.To(view(expected));
    LaunchSerial(Kv8Launch(s), [&](const SerialTeam& team) { DequantizeKv8(team, portable); });
    DequantizeKv8Simd(layer.To(view(actual)));
    ASSERT_TRUE(std::ranges::equal(expected.span(), actual.span()))
        << "dtype " << int(dtype) << ", form " << int(form) << ", stores " << int(stores);
  }
  static void ExpectSameDecodings(const BlockShape& s, const Layer& layer) {
    for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32, DType::kE4m3, DType::kE5m2})
      for (const VForm form : {VForm::kPlain, VForm::kRotated})
        for (const Stores stores : {Stores::kCached, Stores::kStreaming})
          ExpectSameDecoding(s, layer, dtype, form, stores);
  }
};

TEST_P(SimdKv8Test, EncodesAndDecodesAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (const BlockShape& shape : Shapes()) {
    SCOPED_TRACE(testing::Message() << "Dk " << shape.k_dim << " T " << shape.tokens << " dtype "
                                    << int(shape.dtype));
    for (uint32_t kind = 0; kind < kKinds; ++kind) {
      const std::vector<std::byte> raw = Raw(shape, kind, random);
      const Layer expected(shape), actual(shape);
      LimitSimd(SimdLevel::kPortable);
      const Kv8LayerErrors portable = QuantizeKv8Simd(expected.From(raw));
      LimitSimd(GetParam());
      const Kv8LayerErrors errors = QuantizeKv8Simd(actual.From(raw));
      ASSERT_TRUE(actual.HasBytesOf(expected)) << "kind " << kind;
      ASSERT_NEAR(Relative(errors.k), Relative(portable.k), Relative(portable.k) / 4096) << kind;
      ASSERT_NEAR(Relative(errors.v), Relative(portable.v), Relative(portable.v) / 4096) << kind;
      if (kind == shape.k_dim / 16 % kKinds) ExpectSameDecodings(shape, actual);
    }
  }
}

/// One row of V: `largest`, then the fp16 beside every middle between two neighbours of E4M3 of its scale,
/// with both signs; as many rows of `dim` as they take, each of them begun by `largest`.
void AppendTies(uint16_t largest, uint32_t dim, std::vector<uint16_t>& rows) {
  const float scale = Fp32FromFp16(Fp16UpFromFp32(Fp32FromFp16(largest) / kE4m3Max));
  const auto append = [&](uint16_t number) {
    if (rows.size() % dim == 0) rows.push_back(largest);
    rows.push_back(number);
  };
  for (uint8_t code = 0; code < kFp8Nan - 1; ++code) {
    const auto next = static_cast<uint8_t>(code + 1);
    const uint16_t tie = Fp16FromFp32((Fp32FromE4m3(code) + Fp32FromE4m3(next)) / 2 * scale);
    for (const int beside : {-1, 0, 1}) {
      const auto number = static_cast<uint16_t>(std::clamp(tie + beside, 0, int{largest}));
      append(number);
      append(number | 0x8000);
    }
  }
  while (rows.size() % dim != 0) rows.push_back(0x8000);
}

TEST_P(SimdKv8Test, RoundsVBesideEveryTieAsThePortableBodyDoesForEveryScale) {
  BlockShape shape = {.layers = 1, .kv_heads = 1, .k_dim = 16, .v_dim = 256, .tokens = 128};
  const size_t k_bytes = size_t{2} * shape.tokens * shape.k_dim;
  std::vector<std::byte> raw(RawLayerBytes(shape),
                             std::byte{0x3c});  // K that is not zero: see QuantizeKv8Simd
  std::vector<uint16_t> rows;
  for (uint16_t mantissa = 0; mantissa < 1024; ++mantissa) {
    AppendTies(static_cast<uint16_t>(0x7400 + mantissa), shape.v_dim, rows);
    if (mantissa % 25 != 24 && mantissa != 1023) continue;
    ASSERT_LE(2 * rows.size(), raw.size() - k_bytes);
    std::memcpy(&raw[k_bytes], rows.data(), 2 * rows.size());
    rows.clear();
    const Layer expected(shape), actual(shape);
    LimitSimd(SimdLevel::kPortable);
    QuantizeKv8Simd(expected.From(raw));
    LimitSimd(GetParam());
    QuantizeKv8Simd(actual.From(raw));
    ASSERT_TRUE(actual.HasBytesOf(expected)) << "largest up to 2^14 (1 + " << mantissa << " / 1024)";
  }
}

// Every power of two comes out one place below it: no 16-bit source has such quotients.
TEST_P(SimdKv8Test, RoundsVJustBelowPowersOfTwoAsThePortableBodyDoes) {
  const BlockShape shape = {
      .layers = 1, .kv_heads = 1, .k_dim = 256, .v_dim = 256, .tokens = 1, .dtype = DType::kE4m3};
  std::vector<std::byte> raw(RawLayerBytes(shape));
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>((i & kFp8Nan) == kFp8Nan ? 0 : i);
  const float scale = std::nextafter(1.0f, 0.0f);
  const Layer expected(shape), actual(shape);
  const auto quantize = [&](const Layer& layer) {
    QuantizeKv8Args args = layer.From(raw);
    args.source.scales = {.k = scale, .v = scale};
    QuantizeKv8Simd(args);
  };
  LimitSimd(SimdLevel::kPortable);
  quantize(expected);
  LimitSimd(GetParam());
  quantize(actual);
  EXPECT_TRUE(actual.HasBytesOf(expected));
}

TEST_P(SimdKv8Test, DecodesArbitraryBytesAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (const BlockShape& shape : Shapes()) {
    Layer layer(shape);
    layer.FillRandomly(random);
    ExpectSameDecodings(shape, layer);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SimdKv8Test, testing::ValuesIn(AllSimdLevels()), SimdLevelParamName);

}  // namespace
}  // namespace kvtier
