// Every set of vector instructions that this CPU has encodes to the bytes of the portable body, and states
// the same errors to the last place of the fp16 that keeps them.
#include "kernels/simd/quantize_simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>

#include "kernels/fp8.h"
#include "kernels/quantize.h"
#include "tests/kernels/plane_buffers.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/simd_level_test.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 4711;
constexpr uint8_t kUnwritten = 0xCD;

struct Encoded {
  std::vector<uint8_t> bytes;
  LayerErrors errors;
};

enum class Rung : uint8_t { kInt4, kK4V2, kInt2 };

Encoded Encode(const BlockShape& shape, std::span<const std::byte> raw, Rung rung) {
  const PlaneBuffers buffers(shape, kUnwritten);
  QuantizeArgs args = {
      .shape = shape, .raw = raw.data(), .scales = {.k = 0.5f, .v = 3.0f}, .out = buffers.sections()};
  if (rung != Rung::kInt4) args.out.v_low = nullptr;
  if (rung == Rung::kInt2) args.out.k_low = nullptr;
  if (rung != Rung::kInt2 || shape.nb == 0) args.out.boost_ids = args.out.boost_low = nullptr;
  const LayerErrors errors = QuantizeSimd(args);
  return {.bytes = buffers.Bytes(), .errors = errors};
}

/// Relative errors within a place of fp16: the portable body measures K decoded, vectors on the grid where
/// that tells.
bool IsSameError(double error, double square, double expected_error, double expected_square) {
  if (expected_error == 0 || error == 0) return error == expected_error;
  const double expected = std::sqrt(expected_error / expected_square);
  return std::fabs(std::sqrt(error / square) - expected) <= expected / 1024;
}
bool AreSameErrors(const RowErrors& errors, const RowErrors& expected) {
  return IsSameError(errors.int4, errors.square, expected.int4, expected.square) &&
         IsSameError(errors.int2, errors.square, expected.int2, expected.square);
}

std::string Describe(const BlockShape& s) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb) + " dtype" + std::to_string(static_cast<int>(s.dtype));
}

class SimdEncodeTest : public SimdLevelTest {
 protected:
  void ExpectPortableBytes(const BlockShape& shape, std::span<const std::byte> raw) {
    for (const Rung rung : {Rung::kInt4, Rung::kK4V2, Rung::kInt2}) {
      LimitSimd(SimdLevel::kPortable);
      const Encoded expected = Encode(shape, raw, rung);
      LimitSimd(GetParam());
      const Encoded actual = Encode(shape, raw, rung);
      ASSERT_TRUE(actual.bytes == expected.bytes) << Describe(shape) << ", rung " << int(rung);
      ASSERT_TRUE(AreSameErrors(actual.errors.k, expected.errors.k)) << Describe(shape) << ", K";
      ASSERT_TRUE(AreSameErrors(actual.errors.v, expected.errors.v)) << Describe(shape) << ", V";
    }
  }
};

BlockShape Shape(uint32_t heads, uint32_t k_dim, uint32_t v_dim, uint32_t tokens, uint32_t nraw, uint32_t nb,
                 DType dtype) {
  return {.layers = 1,
          .kv_heads = static_cast<uint16_t>(heads),
          .k_dim = static_cast<uint16_t>(k_dim),
          .v_dim = static_cast<uint16_t>(v_dim),
          .tokens = static_cast<uint16_t>(tokens),
          .dtype = dtype,
          .nraw = static_cast<uint8_t>(nraw),
          .nb = static_cast<uint8_t>(nb)};
}

uint16_t Narrow(float value, DType dtype) {
  if (dtype == DType::kE4m3) return E4m3FromFp32(value);
  if (dtype == DType::kE5m2) return E5m2FromFp32(value);
  return dtype == DType::kBf16 ? Bf16FromFp32(value) : Fp16FromFp32(value);
}
/// A finite element from any bits; in FP8 with a product that is finite too.
uint16_t Finite(uint32_t bits, DType dtype) {
  if (IsFp8(dtype)) {
    const uint32_t limit = dtype == DType::kE4m3 ? kFp8Nan : kE5m2Infinity - 7u, magnitude = bits & 0x7f;
    return static_cast<uint16_t>((bits & 0x80) | (magnitude < limit ? magnitude : magnitude % limit));
  }
  const uint32_t limit = dtype == DType::kBf16 ? kBf16AboveFp16 : kFp16Infinity, magnitude = bits & 0x7fff;
  return static_cast<uint16_t>((bits & 0x8000) | (magnitude < limit ? magnitude : magnitude % limit));
}

uint16_t LargestOf(DType dtype) {
  if (dtype == DType::kE4m3) return kFp8Nan - 1;
  if (dtype == DType::kE5m2) return kE5m2Infinity - 8;
  return dtype == DType::kBf16 ? kBf16AboveFp16 - 1 : kFp16Infinity - 1;
}

/// Elements from one(index).
template <typename One>
std::vector<std::byte> Raw(const BlockShape& shape, const One& one) {
  std::vector<std::byte> raw(RawLayerBytes(shape));
  const size_t bytes = DTypeBytes(shape.dtype);
  for (size_t i = 0; i < raw.size() / bytes; ++i) {
    const uint16_t element = one(i);
    memcpy(&raw[bytes * i], &element, bytes);  // little endian
  }
  return raw;
}
std::vector<std::byte> NormalRaw(const BlockShape& shape, std::mt19937& random, float mean) {
  std::normal_distribution<float> normal(mean);
  return Raw(shape,
             [&](size_t i) { return Narrow(normal(random) * static_cast<float>(1 + i % 5), shape.dtype); });
}

TEST_P(SimdEncodeTest, EncodesEveryShapeAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (uint32_t dim = 16; dim <= kMaxHeadDim; dim += 16) {
    for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}) {
      const uint32_t nraw = random() % 5, tokens = 4 + random() % 125, nb = random() % (dim / 4) * 4;
      const BlockShape shape = Shape(1 + dim % 3, dim, 272 - dim, tokens, nraw, nb, dtype);
      ExpectPortableBytes(shape, NormalRaw(shape, random, 0.5f));
    }
  }
  for (uint32_t tokens = 4; tokens <= kMaxTokens; ++tokens) {
    const BlockShape shape = Shape(1, 64, 128, tokens, tokens % 5, 32, DType::kFp16);
    ExpectPortableBytes(shape, NormalRaw(shape, random, 2));
  }
}

/// As some models' first layers have K: then the rounding of decoded values is a part of the error. Channels
/// near zero stand beside such ones.
TEST_P(SimdEncodeTest, EncodesKFarFromZeroAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    for (const float mean : {4.0f, 40.0f, -1000.0f, 1e-5f}) {
      for (const uint32_t dim : {64u, 80u, 128u, 256u}) {
        const BlockShape shape = Shape(2, dim, 64, 61, dim == 64 ? 0 : 2, dim / 2, dtype);
        const float spread = std::fabs(mean) < 1 ? 1e-9f : 1.0f;
        ExpectPortableBytes(shape, Raw(shape, [&](size_t i) {
                              const bool is_far = i % dim / 64 % 2 == 0;
                              return Narrow((is_far ? mean : 0) + spread * normal(random), dtype);
                            }));
      }
    }
  }
}

TEST_P(SimdEncodeTest, EncodesExtremesAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}) {
    const uint16_t largest = LargestOf(dtype), sign = IsFp8(dtype) ? 0x80 : 0x8000;
    const uint16_t subnormals = IsFp8(dtype) ? 0x03 : 0x03ff;
    const auto any = [&](size_t) { return Finite(random(), dtype); };
    const auto tiny = [&](size_t) { return static_cast<uint16_t>(random() & (sign | subnormals)); };
    const auto zeros = [&](size_t) { return static_cast<uint16_t>(random() & sign); };
    const auto ends = [&](size_t) { return static_cast<uint16_t>((random() & sign) | largest); };
    const auto top = [&](size_t) { return largest; };  // rotated, V is at the end of what a scale can hold
    const auto wide = [&](size_t) { return static_cast<uint16_t>(random() % 3 == 0 ? largest : 0); };
    const auto constant = [&](size_t i) { return Narrow(i % 64 < 32 ? 1.0f : 20000.0f, dtype); };
    const auto one_hot = [&](size_t i) { return Narrow(i % 67 == 5 ? 3.7f : 0.0f, dtype); };
    const auto around_steps = [&](size_t i) {  // quotients on and beside half a step
      return Narrow(i % 32 < 2 ? (i % 2 ? 15.0f : 0.0f) : static_cast<float>(random() % 31) * 0.5f, dtype);
    };
    const auto few_subnormals = [&](size_t i) {  // half of the K channels have a scale of zero, not one value
      return static_cast<uint16_t>(random() & (i % 2 == 0 ? 7 : 31));
    };
    for (const auto& [k_dim, v_dim, tokens, nraw] :
         {std::tuple(128, 128, 64, 0), std::tuple(80, 96, 37, 1), std::tuple(64, 192, 9, 4)}) {
      const BlockShape shape = Shape(1, k_dim, v_dim, tokens, nraw, k_dim / 2, dtype);
      ExpectPortableBytes(shape, Raw(shape, any));
      ExpectPortableBytes(shape, Raw(shape, tiny));
      ExpectPortableBytes(shape, Raw(shape, zeros));
      ExpectPortableBytes(shape, Raw(shape, ends));
      ExpectPortableBytes(shape, Raw(shape, top));
      ExpectPortableBytes(shape, Raw(shape, wide));
      ExpectPortableBytes(shape, Raw(shape, constant));
      ExpectPortableBytes(shape, Raw(shape, one_hot));
      ExpectPortableBytes(shape, Raw(shape, around_steps));
      ExpectPortableBytes(shape, Raw(shape, few_subnormals));
    }
  }
}

TEST_P(SimdEncodeTest, EncodesFp8AsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (const DType dtype : {DType::kE4m3, DType::kE5m2}) {
    const BlockShape shape = Shape(2, 96, 128, 21, 1, 48, dtype);
    std::vector<std::byte> raw(RawLayerBytes(shape));
    for (std::byte& element : raw) element = static_cast<std::byte>((random() & 0x80) | random() % 0x70);
    ExpectPortableBytes(shape, raw);
  }
}

TEST_P(SimdEncodeTest, EncodesRealKvAsThePortableBodyDoes) {
  for (const char* name : {"/smollm2-135m", "/qwen2.5-coder-0.5b"}) {
    auto fixture = Fixture::Load(TestDataFolder() + name);
    ASSERT_TRUE(fixture.ok()) << fixture.status().ToString();
    const std::vector<std::byte> block = fixture->RawBlock(128, 128);
    const BlockShape shape = fixture->Shape(128, 0, 32);
    const size_t layer_bytes = RawLayerBytes(shape);
    for (uint32_t layer = 0; layer < fixture->layers(); ++layer) {
      SCOPED_TRACE(testing::Message() << name << " layer " << layer);
      ExpectPortableBytes(shape, std::span(block).subspan(layer * layer_bytes, layer_bytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SimdEncodeTest, testing::ValuesIn(AllSimdLevels()), SimdLevelParamName);

}  // namespace
}  // namespace kvtier
