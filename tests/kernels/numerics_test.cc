#include "kernels/numerics.h"

#include <gtest/gtest.h>

#if !defined(__FLT16_MANT_DIG__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace kvtier {
namespace {

// The oracle is the compiler's own _Float16, or the processor's conversion where the compiler has none (clang
// 14).
#if defined(__FLT16_MANT_DIG__)
#if defined(__aarch64__)
using CompilerHalf = __fp16;
#else
using CompilerHalf = _Float16;
#endif
float CompilerFp32(uint16_t half) {
  return static_cast<float>(std::bit_cast<CompilerHalf>(half));
}
uint16_t CompilerFp16(float value) {
  return std::bit_cast<uint16_t>(static_cast<CompilerHalf>(value));
}
#else
__attribute__((target("f16c"))) float CompilerFp32(uint16_t half) {
  return _cvtsh_ss(half);
}
__attribute__((target("f16c"))) uint16_t CompilerFp16(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}
#endif

bool IsFp16Nan(uint16_t half) {
  return (half & 0x7fff) > kFp16Infinity;
}

/// Every pair of neighbouring fp16, the midpoint between them and the floats beside all three, of both signs;
/// and random bit patterns.
template <typename Check>
void ForManyFloats(const Check& check) {
  for (uint32_t half = 0; half < kFp16Infinity; ++half) {
    const float value = CompilerFp32(static_cast<uint16_t>(half));
    const float next = half + 1 == kFp16Infinity ? 65536.0f : CompilerFp32(static_cast<uint16_t>(half + 1));
    for (const float around : {value, value + (next - value) / 2}) {
      for (const float x : {std::nextafterf(around, -1.0f), around, std::nextafterf(around, 1e9f)}) {
        check(x);
        check(-x);
      }
    }
  }
  std::mt19937 random(20240601);
  for (int i = 0; i < 2'000'000; ++i) check(std::bit_cast<float>(static_cast<uint32_t>(random())));
}

TEST(NumericsTest, WidensAll65536Fp16CodesAsTheCompilerDoes) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<uint16_t>(code);
    if (IsFp16Nan(half)) {
      EXPECT_TRUE(std::isnan(Fp32FromFp16(half))) << code;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(Fp32FromFp16(half)), std::bit_cast<uint32_t>(CompilerFp32(half)))
          << code;
    }
  }
}

TEST(NumericsTest, NarrowsAll65536Fp16CodesBackToThemselves) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<uint16_t>(code);
    const uint16_t back = Fp16FromFp32(Fp32FromFp16(half));
    EXPECT_TRUE(back == half || (IsFp16Nan(half) && IsFp16Nan(back))) << code;
  }
}

TEST(NumericsTest, RoundsToNearestEvenAsTheCompilerDoes) {
  ForManyFloats([](float x) {
    const uint16_t ours = Fp16FromFp32(x), theirs = CompilerFp16(x);
    ASSERT_TRUE(ours == theirs || (IsFp16Nan(ours) && IsFp16Nan(theirs))) << std::hexfloat << x;
  });
}

TEST(NumericsTest, TheQuickRoundingsAgreeWithTheGeneralOne) {
  ForManyFloats([](float x) {
    if (!(std::fabs(x) < 65536.0f)) return;
    ASSERT_EQ(Fp16FromFinite(x), Fp16FromFp32(x)) << std::hexfloat << x;
    if (std::fabs(x) <= kFp16Max) {
      ASSERT_EQ(RoundFiniteToFp16(x), Fp32FromFp16(Fp16FromFp32(x))) << std::hexfloat << x;
    }
  });
}

TEST(NumericsTest, RoundingUpGivesTheSmallestFp16NotBelow) {
  ForManyFloats([](float x) {
    if (std::isnan(x)) return;
    const uint16_t up = Fp16UpFromFp32(x);
    ASSERT_GE(CompilerFp32(up), x) << std::hexfloat << x;
    // The next lower fp16 is below x.
    if (up == 0xfc00 || (up & 0x7fff) == 0) return;
    const auto lower = static_cast<uint16_t>(up & 0x8000 ? up + 1 : up - 1);
    ASSERT_LT(CompilerFp32(lower), x) << std::hexfloat << x;
  });
  EXPECT_EQ(Fp16UpFromFp32(1e-30f), 1);
  EXPECT_EQ(Fp16UpFromFp32(0.0f), 0);
  EXPECT_EQ(Fp16UpFromFp32(65505.0f), kFp16Infinity);
}

TEST(NumericsTest, Bf16WidensExactlyAndRoundsToNearestEven) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto brain = static_cast<uint16_t>(code);
    const float wide = Fp32FromBf16(brain);
    EXPECT_EQ(std::bit_cast<uint32_t>(wide), code << 16);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(Fp32FromBf16(Bf16FromFp32(wide))));
      continue;
    }
    EXPECT_EQ(Bf16FromFp32(wide), brain);
    if (std::isinf(wide)) continue;
    // Below, at and above the midpoint to the next code away from zero.
    const auto away = static_cast<uint16_t>(brain + 1);
    EXPECT_EQ(Bf16FromFp32(std::bit_cast<float>((code << 16) + 0x7fff)), brain);
    EXPECT_EQ(Bf16FromFp32(std::bit_cast<float>((code << 16) + 0x8000)), code & 1 ? away : brain);
    EXPECT_EQ(Bf16FromFp32(std::bit_cast<float>((code << 16) + 0x8001)), away);
  }
}

TEST(NumericsTest, DecodedValuesEndInTheFiniteRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Fp16Out(65519.9f), 0x7bff);
  EXPECT_EQ(Fp16Out(1e30f), 0x7bff);
  EXPECT_EQ(Fp16Out(infinity), 0x7bff);
  EXPECT_EQ(Fp16Out(-infinity), 0xfbff);
  EXPECT_EQ(Fp16Out(std::numeric_limits<float>::quiet_NaN()) & 0x7c00, 0x7800);
  EXPECT_EQ(Fp32FromBf16(Bf16Out(1e30f)), 65536.0f) << "RNE of 65504";
}

}  // namespace
}  // namespace kvtier
