// The cases where codecs of this kind go wrong, one by one: kv8.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/fp8.h"
#include "tests/codecs/trap_fixture.h"

namespace kvtier {
namespace {

class Kv8TrapTest : public TrapTest {
 protected:
  static BlockShape Kv8Shape(uint8_t nraw = 0) {
    BlockShape shape = Shape(1, 64, nraw);
    shape.nb = 0;
    return shape;
  }
  static const Codec& Kv8() { return Named("kv8"); }
  static uint16_t VScale(const EncodedLayer& layer, uint32_t token) {
    return Load16(&layer.part[0][AlignSection(Kv8SectionBytesOf(layer.shape).k_ranges) + 2 * token]);
  }
  static bool AllFinite(const Bytes& fp16) {
    for (size_t i = 0; i < fp16.size() / 2; ++i)
      if ((At(fp16, i) & 0x7fff) >= kFp16Infinity) return false;
    return true;
  }
};

TEST_P(Kv8TrapTest, AConstantChannelDecodesExactlyToItsValue) {
  const BlockShape shape = Kv8Shape();
  const Bytes raw = Raw(
      shape, [](uint32_t, uint32_t c) { return 161.5f - static_cast<float>(c); }, Zero);
  const EncodedLayer layer = EncodeLayer(Kv8(), shape, raw);
  for (uint32_t c = 0; c < 64; ++c) EXPECT_EQ(KScale(layer, c), 0);
  EXPECT_EQ(DecodeLayer(Kv8(), layer, DType::kFp16), raw);
  EXPECT_EQ(layer.error.k_int4, 0);
}

TEST_P(Kv8TrapTest, CodesComeFromTheRoundedSubnormalScaleAndAreClamped) {
  const BlockShape shape = Kv8Shape();
  const auto decoded_for = [&](float steps_of_max) {  // K of 0 .. steps_of_max * 2^-24
    const auto value = [&](uint32_t t, uint32_t) { return t == 0 ? 0.0f : std::ldexp(steps_of_max, -24); };
    const EncodedLayer layer = EncodeLayer(Kv8(), shape, Raw(shape, value, Zero));
    return At(DecodeLayer(Kv8(), layer, DType::kFp16), KIndex(shape, 1, 0));
  };
  EXPECT_EQ(decoded_for(255), 255) << "the scale is 2^-24, all is exact";
  EXPECT_EQ(decoded_for(128), 128) << "128/255 rounds up to one";
  EXPECT_EQ(decoded_for(127), 0) << "127/255 rounds to zero: everything is the minimum";
  EXPECT_EQ(decoded_for(380), 255) << "380/255 rounds down to one, and 255 codes are all there are";
}

TEST_P(Kv8TrapTest, ExtremeRangesDecodeToFiniteValues) {
  const BlockShape shape = Kv8Shape();
  const auto extreme_k = [](uint32_t t, uint32_t c) { return t % 2 ? 65504.0f : c % 2 ? -65504.0f : 0.0f; };
  for (const float v : {20000.0f, 65504.0f, -65504.0f}) {
    const EncodedLayer layer =
        EncodeLayer(Kv8(), shape, Raw(shape, extreme_k, [&](uint32_t, uint32_t) { return v; }));
    EXPECT_TRUE(AllFinite(DecodeLayer(Kv8(), layer, DType::kFp16))) << v;
    EXPECT_LT(layer.error.k_int4, 0.005);
    EXPECT_LT(layer.error.v_int4, 0.005);
  }
}

TEST_P(Kv8TrapTest, AMinimumRoundedAboveTheTrueOneGivesCodeZero) {
  BlockShape shape = Kv8Shape();
  shape.dtype = DType::kBf16;
  const auto value = [](uint32_t t, uint32_t) {
    return t == 0 ? std::ldexp(1.75f, -25) : std::ldexp(1.0f, -14);
  };
  const EncodedLayer layer = EncodeLayer(Kv8(), shape, Raw(shape, value, Zero));
  EXPECT_EQ(KMin(layer, 0), 1);
  EXPECT_EQ(At(DecodeLayer(Kv8(), layer, DType::kFp16), KIndex(shape, 0, 0)), 1);
}

TEST_P(Kv8TrapTest, SignedZerosBecomePlusZeroWhereTheScaleIsZeroExceptInRawRows) {
  const BlockShape shape = Kv8Shape(1);
  const auto minus_zero = [](uint32_t, uint32_t) { return -0.0f; };
  const Bytes raw = Raw(shape, minus_zero, minus_zero);
  const EncodedLayer layer = EncodeLayer(Kv8(), shape, raw);
  const Bytes decoded = DecodeLayer(Kv8(), layer, DType::kFp16);
  for (uint32_t c = 0; c < 64; ++c) {
    EXPECT_EQ(KMin(layer, c), 0);
    EXPECT_EQ(At(decoded, KIndex(shape, 0, c)), 0x8000);
    EXPECT_EQ(At(decoded, VIndex(shape, 0, c)), 0x8000);
    for (uint32_t t = 1; t < kTrapTokens; ++t) {
      ASSERT_EQ(At(decoded, KIndex(shape, t, c)), 0);
      ASSERT_EQ(At(decoded, VIndex(shape, t, c)), 0);
    }
  }
}

/// A layer of zeros alone is encoded by the portable code.
TEST_P(Kv8TrapTest, ARowOfMinusZeroAmongOthersBecomesPlusZero) {
  const BlockShape shape = Kv8Shape();
  constexpr uint32_t kZeroRow = 5;
  const auto value = [](uint32_t t, uint32_t c) {
    return t == kZeroRow ? -0.0f : 1.0f + static_cast<float>(c + t) / 64;
  };
  const EncodedLayer layer = EncodeLayer(Kv8(), shape, Raw(shape, value, value));
  EXPECT_EQ(VScale(layer, kZeroRow), 0);
  const Bytes decoded = DecodeLayer(Kv8(), layer, DType::kFp16);
  for (uint32_t c = 0; c < 64; ++c) EXPECT_EQ(At(decoded, VIndex(shape, kZeroRow, c)), 0) << c;
}

TEST_P(Kv8TrapTest, QuotientsHalfWayRoundToTheEvenCode) {
  const BlockShape shape = Kv8Shape();
  // Range 0 .. 255, so that the scale is 1 and the minimum 0; halves in between.
  const auto value = [](uint32_t t, uint32_t) { return t == 63 ? 255.0f : static_cast<float>(t) * 0.5f; };
  const EncodedLayer layer = EncodeLayer(Kv8(), shape, Raw(shape, value, Zero));
  EXPECT_EQ(KScale(layer, 0), Fp16FromFp32(1));
  const Bytes decoded = DecodeLayer(Kv8(), layer, DType::kFp16);
  for (uint32_t t = 0; t < 63; ++t)
    EXPECT_EQ(Fp32FromFp16(At(decoded, KIndex(shape, t, 0))), std::nearbyint(static_cast<float>(t) * 0.5f));
}

TEST_P(Kv8TrapTest, EveryE4m3ValueTimesAPowerOfTwoIsExact) {
  const BlockShape shape = Kv8Shape();
  const float scale = 1.0f / 32;
  // Row t: 448 first, so that the scale is the power of two, then codes of E4M3, sign included.
  const auto value = [&](uint32_t t, uint32_t c) {
    return (c == 0
                ? kE4m3Max
                : Fp32FromE4m3(static_cast<uint8_t>((t * 63 + c) % 254 / 127 * 128 + (t * 63 + c) % 127))) *
           scale;
  };
  const Bytes raw = Raw(shape, Zero, value);
  const EncodedLayer layer = EncodeLayer(Kv8(), shape, raw);
  for (uint32_t t = 0; t < kTrapTokens; ++t) ASSERT_EQ(VScale(layer, t), Fp16FromFp32(scale));
  EXPECT_EQ(DecodeLayer(Kv8(), layer, DType::kFp16), raw);
  EXPECT_EQ(layer.error.v_int4, 0);
}

TEST_P(Kv8TrapTest, TheScaleOfVIsRoundedUpSoThatTheLargestIsNotCutOff) {
  const BlockShape shape = Kv8Shape();
  // 1.0 / 448 is no fp16: rounded to nearest it would be too small for the largest value in half of the
  // cases.
  for (const float largest : {1.0f, 3.0f, 0.7f, 1e-6f, 60000.0f}) {
    const EncodedLayer layer =
        EncodeLayer(Kv8(), shape,
                    Raw(shape, Zero, [&](uint32_t, uint32_t c) { return c == 5 ? -largest : largest / 64; }));
    const float kept = std::fabs(Fp32FromFp16(Fp16FromFp32(-largest)));
    const float scale = Fp32FromFp16(VScale(layer, 3));
    EXPECT_GE(scale * kE4m3Max, kept) << largest;
    EXPECT_LT(Fp32FromFp16(static_cast<uint16_t>(VScale(layer, 3) - 1)) * kE4m3Max, kept) << largest;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Kv8TrapTest, testing::ValuesIn(AllSimdLevels()), SimdLevelParamName);

}  // namespace
}  // namespace kvtier
