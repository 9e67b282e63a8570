// The cases where codecs of this kind go wrong, one by one: the plane family.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/codecs/trap_fixture.h"

namespace kvtier {
namespace {

using PlaneTrapTest = TrapTest;

TEST_P(PlaneTrapTest, AConstantChannelDecodesExactlyToItsValue) {
  const BlockShape shape = Shape();
  const Bytes raw = Raw(
      shape, [](uint32_t, uint32_t c) { return 161.5f - static_cast<float>(c); }, Zero);
  for (const char* name : {"kv4p", "kv42", "kv2p"}) {
    const EncodedLayer layer = EncodeLayer(Named(name), shape, raw);
    for (uint32_t c = 0; c < 64; ++c) EXPECT_EQ(KScale(layer, c), 0);
    EXPECT_EQ(DecodeLayer(Named(name), layer, DType::kFp16), raw) << name;
    EXPECT_EQ(layer.error.k_int4, 0);
    EXPECT_EQ(layer.error.k_int2, 0);
  }
}

TEST_P(PlaneTrapTest, ATinyGroupKeepsItsOwnScaleInsteadOfAFloor) {
  const BlockShape shape = Shape();
  // Steps of 2^-24, the smallest fp16: 15 of them span the group, so that int4 is exact.
  const auto tiny = [](uint32_t t, uint32_t) { return std::ldexp(static_cast<float>(t % 16), -24); };
  const Bytes raw = Raw(shape, tiny, Zero);
  const EncodedLayer layer = EncodeLayer(Named("kv4p"), shape, raw);
  EXPECT_EQ(KScale(layer, 0), 1);
  EXPECT_EQ(DecodeLayer(Named("kv4p"), layer, DType::kFp16), raw);
}

TEST_P(PlaneTrapTest, CodesComeFromTheRoundedSubnormalScaleAndAreClamped) {
  const BlockShape shape = Shape();
  const auto code_for = [&](float steps_of_max) {  // K of 0 .. steps_of_max * 2^-24
    const auto value = [&](uint32_t t, uint32_t) { return t == 0 ? 0.0f : std::ldexp(steps_of_max, -24); };
    return EncodeLayer(Named("kv4p"), shape, Raw(shape, value, Zero));
  };
  // 8/15 of 2^-24 rounds up to 2^-24: the largest value has code 8, and all is exact.
  const EncodedLayer up = code_for(8);
  EXPECT_EQ(KScale(up, 0), 1);
  EXPECT_EQ(At(DecodeLayer(Named("kv4p"), up, DType::kFp16), KIndex(shape, 1, 0)), 8);
  // 7/15 rounds to zero: everything is the minimum.
  const EncodedLayer zero = code_for(7);
  EXPECT_EQ(KScale(zero, 0), 0);
  EXPECT_EQ(At(DecodeLayer(Named("kv4p"), zero, DType::kFp16), KIndex(shape, 1, 0)), 0);
  // 22/15 rounds down to one: code 22 does not exist, 15 is the most.
  const EncodedLayer down = code_for(22);
  EXPECT_EQ(KScale(down, 0), 1);
  EXPECT_EQ(At(DecodeLayer(Named("kv4p"), down, DType::kFp16), KIndex(shape, 1, 0)), 15);
}

TEST_P(PlaneTrapTest, ExtremeRangesDecodeToFiniteValues) {
  const BlockShape shape = Shape();
  const auto extreme_k = [](uint32_t t, uint32_t c) { return t % 2 ? 65504.0f : c % 2 ? -65504.0f : 0.0f; };
  for (const float v : {20000.0f, 65504.0f, -65504.0f}) {
    const Bytes raw = Raw(shape, extreme_k, [&](uint32_t, uint32_t) { return v; });
    for (const char* name : {"kv4p", "kv42", "kv2p"}) {
      const EncodedLayer layer = EncodeLayer(Named(name), shape, raw);
      const Bytes fp16 = DecodeLayer(Named(name), layer, DType::kFp16),
                  bf16 = DecodeLayer(Named(name), layer, DType::kBf16);
      for (size_t i = 0; i < fp16.size() / 2; ++i) {
        ASSERT_LT(At(fp16, i) & 0x7fff, 0x7c00) << name << " element " << i;
        ASSERT_LT(At(bf16, i) & 0x7fff, 0x7f80) << name << " element " << i;
      }
      EXPECT_TRUE(std::isfinite(layer.error.k_int2) && std::isfinite(layer.error.v_int2));
      // Rounded up, the scale would be infinity from 61,441 on: the largest byte is 247.
      EXPECT_EQ(static_cast<int>(VScales(layer)[0]), v == 20000 ? 234 : 247);
    }
  }
}

TEST_P(PlaneTrapTest, ANonFiniteValueIsFoundWhereverItIs) {
  BlockShape shape = Shape(1, 16);
  shape.tokens = 4;
  const Bytes fp16 = Raw(shape, Ramp, Ramp);
  EXPECT_TRUE(LayerIsFinite(shape, {.raw = fp16}));
  for (size_t i = 0; i < fp16.size() / 2; ++i) {
    for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff}) {
      Bytes broken = fp16;
      Store16(&broken[2 * i], bad);
      ASSERT_FALSE(LayerIsFinite(shape, {.raw = broken})) << "element " << i << " = " << bad;
    }
    Bytes largest = fp16;
    Store16(&largest[2 * i], 0xfbff);
    ASSERT_TRUE(LayerIsFinite(shape, {.raw = largest}));
  }
  shape.dtype = DType::kBf16;
  const Bytes bf16 = Raw(shape, Ramp, Ramp);
  EXPECT_TRUE(LayerIsFinite(shape, {.raw = bf16}));
  for (size_t i = 0; i < bf16.size() / 2; ++i) {
    for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x4780, 0xc780}) {  // 0x4780: 65536
      Bytes broken = bf16;
      Store16(&broken[2 * i], bad);
      ASSERT_FALSE(LayerIsFinite(shape, {.raw = broken})) << "element " << i << " = " << bad;
    }
    Bytes largest = bf16;
    Store16(&largest[2 * i], 0x477f);
    ASSERT_TRUE(LayerIsFinite(shape, {.raw = largest}));
  }
}

TEST_P(PlaneTrapTest, AMinimumRoundedAboveTheTrueOneGivesCodeZero) {
  BlockShape shape = Shape();
  shape.dtype = DType::kBf16;
  // The minimum, 1.75 * 2^-25, is no fp16: it rounds up to 2^-24, and its quotient is negative.
  const auto value = [](uint32_t t, uint32_t) {
    return t == 0 ? std::ldexp(1.75f, -25) : std::ldexp(1.0f, -14);
  };
  const EncodedLayer layer = EncodeLayer(Named("kv4p"), shape, Raw(shape, value, Zero));
  EXPECT_EQ(KMin(layer, 0), 1);
  EXPECT_EQ(At(DecodeLayer(Named("kv4p"), layer, DType::kFp16), KIndex(shape, 0, 0)), 1);
}

TEST_P(PlaneTrapTest, SignedZerosBecomePlusZeroExceptInRawRows) {
  const BlockShape shape = Shape(1, 64, 1);
  const auto minus_zero = [](uint32_t, uint32_t) { return -0.0f; };
  const auto either_zero = [](uint32_t t, uint32_t c) { return (t + c) % 2 ? -0.0f : 0.0f; };
  for (const auto& k : {Value(minus_zero), Value(either_zero)}) {
    const Bytes raw = Raw(shape, k, minus_zero);
    for (const char* name : {"kv4p", "kv42", "kv2p"}) {
      const EncodedLayer layer = EncodeLayer(Named(name), shape, raw);
      for (uint32_t c = 0; c < 64; ++c) {
        EXPECT_EQ(KScale(layer, c), 0);
        EXPECT_EQ(KMin(layer, c), 0);
      }
      const Bytes decoded = DecodeLayer(Named(name), layer, DType::kFp16);
      for (uint32_t c = 0; c < 64; ++c) {
        EXPECT_EQ(At(decoded, KIndex(shape, 0, c)), At(raw, KIndex(shape, 0, c)))
            << "raw rows keep their sign";
        EXPECT_EQ(At(decoded, VIndex(shape, 0, c)), 0x8000);
        for (uint32_t t = 1; t < kTrapTokens; ++t) {
          ASSERT_EQ(At(decoded, KIndex(shape, t, c)), 0);
          ASSERT_EQ(At(decoded, VIndex(shape, t, c)), 0);
        }
      }
    }
  }
}

TEST_P(PlaneTrapTest, AMinimumThatRoundsToMinusZeroIsStoredAsPlusZero) {
  BlockShape shape = Shape();
  shape.dtype = DType::kBf16;
  const auto value = [](uint32_t t, uint32_t) { return t == 0 ? -std::ldexp(1.0f, -30) : 1.0f; };
  EXPECT_EQ(KMin(EncodeLayer(Named("kv4p"), shape, Raw(shape, value, Zero)), 0), 0);
}

TEST_P(PlaneTrapTest, EveryHeadIsEncodedAlone) {
  const BlockShape both = Shape(2), one = Shape(1);
  const Bytes first = Raw(one, Ramp, Ramp);
  const Bytes second = Raw(
      one, [](uint32_t t, uint32_t c) { return 100.0f * Ramp(c, t); }, Ramp);
  const size_t half = first.size() / 2;
  Bytes together(first.begin(), first.begin() + static_cast<ptrdiff_t>(half));
  together.insert(together.end(), second.begin(), second.begin() + static_cast<ptrdiff_t>(half));
  together.insert(together.end(), first.begin() + static_cast<ptrdiff_t>(half), first.end());
  together.insert(together.end(), second.begin() + static_cast<ptrdiff_t>(half), second.end());
  for (const Codec* codec : AllCodecs()) {
    if (!codec->supports(both)) continue;
    const Bytes decoded = DecodeLayer(*codec, EncodeLayer(*codec, both, together), DType::kFp16);
    const Bytes alone = DecodeLayer(*codec, EncodeLayer(*codec, one, first), DType::kFp16);
    EXPECT_TRUE(std::equal(decoded.begin(), decoded.begin() + static_cast<ptrdiff_t>(half), alone.begin()));
  }
}

TEST_P(PlaneTrapTest, QuotientsHalfWayRoundToTheEvenCode) {
  const BlockShape shape = Shape();
  // Range 0 .. 15, so that the scale is 1 and the minimum 0; halves in between.
  const auto value = [](uint32_t t, uint32_t) { return t == 63 ? 15.0f : static_cast<float>(t % 30) * 0.5f; };
  const EncodedLayer layer = EncodeLayer(Named("kv4p"), shape, Raw(shape, value, Zero));
  EXPECT_EQ(KScale(layer, 0), Fp16FromFp32(1));
  const Bytes decoded = DecodeLayer(Named("kv4p"), layer, DType::kFp16);
  for (uint32_t t = 0; t < 30; ++t)
    EXPECT_EQ(Fp32FromFp16(At(decoded, KIndex(shape, t, 0))), std::nearbyint(static_cast<float>(t) * 0.5f))
        << t;
}

TEST_P(PlaneTrapTest, RotationIsInSylvesterOrder) {
  const BlockShape shape = Shape();
  // Row t is Walsh function t: one coefficient of 8, at index t.
  const auto walsh = [](uint32_t t, uint32_t c) { return __builtin_popcount(t & c) % 2 ? -1.0f : 1.0f; };
  const EncodedLayer layer = EncodeLayer(Named("kv4p"), shape, Raw(shape, Zero, walsh));
  for (uint32_t t = 0; t < kTrapTokens; ++t) {
    EXPECT_EQ(VScales(layer)[t], std::byte{0x3c00 >> 7}) << "8 / 8 = 1";
    for (uint32_t c = 0; c < 64; ++c) ASSERT_EQ(VCode(layer, t, c), c == t ? 15u : 8u) << t << ' ' << c;
  }
}

TEST_P(PlaneTrapTest, ConstantValuesAreTheWorstCaseOfTheMidRiseGrid) {
  const BlockShape shape = Shape();
  const EncodedLayer layer =
      EncodeLayer(Named("kv4p"), shape, Raw(shape, Zero, [](uint32_t, uint32_t) { return 1.0f; }));
  EXPECT_NEAR(layer.error.v_int4, 0.5, 1e-6);
  EXPECT_NEAR(layer.error.v_int2, 2.0, 1e-6);
  // Channel 0 gets all 63 wrong coefficients with the same sign: (15 + 63) / 16, and (12 + 63 * 4) / 16 at
  // INT2.
  const Bytes int4 = DecodeLayer(Named("kv4p"), layer, DType::kFp16);
  const EncodedLayer cut = CutLayer(layer, Named("kv42"));
  const Bytes int2 = DecodeLayer(Named("kv42"), cut, DType::kFp16);
  EXPECT_EQ(Fp32FromFp16(At(int4, VIndex(shape, 5, 0))), 78 / 16.0f);
  EXPECT_EQ(Fp32FromFp16(At(int4, VIndex(shape, 5, 1))), 14 / 16.0f);
  EXPECT_EQ(Fp32FromFp16(At(int2, VIndex(shape, 5, 0))), 264 / 16.0f);
  EXPECT_EQ(Fp32FromFp16(At(int2, VIndex(shape, 5, 1))), 8 / 16.0f);
}

TEST_P(PlaneTrapTest, ValueCodesAreFlooredAndTheScaleIsRoundedUp) {
  BlockShape shape = Shape();
  shape.v_dim = 16;  // not rotated: y is v
  // amax 8.5: 1.0625 has one mantissa bit too many, so the scale becomes 1.125.
  const auto value = [](uint32_t, uint32_t c) {
    return c == 0 ? 8.5f : c == 1 ? -8.5f : c == 2 ? -0.001f : 1.125f * static_cast<float>(c - 3);
  };
  const EncodedLayer layer =
      EncodeLayer(Named("kv4p"), shape,
                  Raw(shape, Zero, [&](uint32_t t, uint32_t c) { return c > 9 ? 0.0f : value(t, c); }));
  EXPECT_EQ(VScales(layer)[0], static_cast<std::byte>(Fp16FromFp32(1.125f) >> 7));
  const Bytes decoded = DecodeLayer(Named("kv4p"), layer, DType::kFp16);
  const float expected[16] = {7.5f, -7.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f, 4.5f,
                              5.5f, 6.5f,  0.5f,  0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
  for (uint32_t c = 0; c < 16; ++c)
    EXPECT_EQ(Fp32FromFp16(At(decoded, VIndex(shape, 0, c))), expected[c] * 1.125f) << c;
}

TEST_P(PlaneTrapTest, ABlockWithNothingButRawRowsIsExact) {
  BlockShape shape = Shape(1, 64, 4);
  shape.tokens = 4;
  const Bytes raw = Raw(shape, Ramp, Ramp);
  for (const char* name : {"kv4p", "kv42", "kv2p"}) {
    const EncodedLayer layer = EncodeLayer(Named(name), shape, raw);
    EXPECT_EQ(KScale(layer, 3), 0);
    EXPECT_EQ(KMin(layer, 3), 0);
    EXPECT_EQ(DecodeLayer(Named(name), layer, DType::kFp16), raw);
  }
}

TEST_P(PlaneTrapTest, AShortBlockIsPaddedByRepeatingItsLastToken) {
  BlockShape is_short = Shape(), padded = Shape();
  is_short.tokens = 61;
  const auto value = [](uint32_t t, uint32_t c) {
    return Ramp(std::min(t, 60u), c) * (t >= 60 ? 1.7f : 1.0f);
  };
  for (const char* name : {"kv4p", "kv42", "kv2p"}) {
    const EncodedLayer from_short = EncodeLayer(Named(name), is_short, Raw(is_short, value, value));
    EXPECT_TRUE(from_short.part == EncodeLayer(Named(name), padded, Raw(padded, value, value)).part) << name;
  }
}

TEST_P(PlaneTrapTest, Bf16AndFp16OfTheSameValuesGiveTheSameBytes) {
  BlockShape fp16 = Shape(), bf16 = Shape();
  bf16.dtype = DType::kBf16;
  for (const char* name : {"kv4p", "kv42", "kv2p"}) {
    const EncodedLayer a = EncodeLayer(Named(name), fp16, Raw(fp16, Ramp, Ramp));
    const EncodedLayer b = EncodeLayer(Named(name), bf16, Raw(bf16, Ramp, Ramp));
    EXPECT_TRUE(a.part == b.part) << name;
  }
}

TEST_P(PlaneTrapTest, Bf16OutputIsRoundedOnceFromFp32) {
  const BlockShape shape = Shape();
  const auto step = [](uint32_t c) { return Fp32FromFp16(static_cast<uint16_t>(0x4200 + 7 * c)); };
  const auto value = [&](uint32_t t, uint32_t c) {
    return t % 16 == 0 ? -1.0f : step(c) * static_cast<float>(t % 16);
  };
  const EncodedLayer layer = EncodeLayer(Named("kv4p"), shape, Raw(shape, value, Zero));
  const Bytes fp16 = DecodeLayer(Named("kv4p"), layer, DType::kFp16);
  const Bytes bf16 = DecodeLayer(Named("kv4p"), layer, DType::kBf16);
  int rounded_twice_differs = 0;
  for (uint32_t c = 0; c < 64; ++c) {
    const float scale = Fp32FromFp16(KScale(layer, c)), minimum = Fp32FromFp16(KMin(layer, c));
    for (uint32_t t = 0; t < kTrapTokens; ++t) {
      const size_t at = KIndex(shape, t, c);
      const float code = std::nearbyint((Fp32FromFp16(At(fp16, at)) - minimum) / scale);
      ASSERT_EQ(At(bf16, at), Bf16FromFp32(std::fmaf(code, scale, minimum))) << t << ' ' << c;
      rounded_twice_differs += At(bf16, at) != Bf16FromFp32(Fp32FromFp16(At(fp16, at)));
    }
  }
  EXPECT_GT(rounded_twice_differs, 0) << "the data does not tell one rounding from two";
}

TEST_P(PlaneTrapTest, BoostIdsBeyondTheLastChannelAreHarmless) {
  const BlockShape shape = Shape();
  EncodedLayer layer = EncodeLayer(Named("kv2p"), shape, Raw(shape, Ramp, Ramp));
  for (uint32_t i = 0; i < shape.nb; ++i) layer.part[1][i] = std::byte{255};
  const Bytes decoded = DecodeLayer(Named("kv2p"), layer, DType::kFp16);
  for (size_t i = 0; i < decoded.size() / 2; ++i) ASSERT_LT(At(decoded, i) & 0x7fff, 0x7c00);
}

INSTANTIATE_TEST_SUITE_P(Levels, PlaneTrapTest, testing::ValuesIn(AllSimdLevels()), SimdLevelParamName);

}  // namespace
}  // namespace kvtier
