#include "kernels/fp8.h"

#include <gtest/gtest.h>

#if KVTIER_HAS_CUDA_FP8
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

#include <bit>
#include <cmath>
#include <iostream>
#include <random>
#include <vector>

namespace kvtier {
namespace {

/// One of the two formats: our conversions, and what its specification says, in double precision.
struct Format {
  const char* name;
  float (*widen)(uint8_t);
  uint8_t (*narrow)(float);
  int mantissa_bits;
  int bias;
  uint8_t largest;  ///< magnitude bits of the largest finite number

  double Value(uint8_t code) const {
    const int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const int implicit = exponent == 0 ? 0 : 1 << mantissa_bits;
    const double magnitude = std::ldexp(implicit + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
    return code & 0x80 ? -magnitude : magnitude;
  }
  bool IsNan(uint8_t code) const { return std::isnan(widen(code)); }

  /// The code whose value is nearest, ties to the even code, saturating.
  uint8_t Nearest(double x) const {
    const double magnitude = std::fabs(x);
    int low = 0, high = largest;  // Value(low) <= magnitude, unless beyond the range
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (Value(static_cast<uint8_t>(middle)) <= magnitude) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    int code = low;
    if (low < largest) {
      const double below = magnitude - Value(static_cast<uint8_t>(low));
      const double above = Value(static_cast<uint8_t>(low + 1)) - magnitude;
      if (above < below || (above == below && low % 2 == 1)) code = low + 1;
    }
    return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
  }
};

constexpr Format kE4m3 = {"E4M3", Fp32FromE4m3, E4m3FromFp32, 3, 7, 0x7e};
constexpr Format kE5m2 = {"E5M2", Fp32FromE5m2, E5m2FromFp32, 2, 15, 0x7b};

class Fp8Test : public testing::TestWithParam<Format> {};

TEST_P(Fp8Test, EveryCodeHasTheValueOfItsBits) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    const float value = format.widen(code);
    if ((code & 0x7f) > format.largest) {
      if (format.mantissa_bits == 2 && (code & 0x7f) == kE5m2Infinity) {
        EXPECT_EQ(value, code & 0x80 ? -INFINITY : INFINITY);
      } else {
        EXPECT_TRUE(std::isnan(value)) << i;
      }
      continue;
    }
    EXPECT_EQ(value, format.Value(code)) << i;
    EXPECT_EQ(std::signbit(value), code >= 0x80) << i;
    EXPECT_EQ(format.narrow(value), code) << i;
  }
}

TEST_P(Fp8Test, All65536Fp16RoundToTheNearestCode) {
  const Format& format = GetParam();
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = Fp32FromFp16(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_TRUE(format.IsNan(format.narrow(value))) << half;
    } else {
      ASSERT_EQ(format.narrow(value), format.Nearest(value)) << half;
    }
  }
}

TEST_P(Fp8Test, FloatsBesideMidpointsRoundToTheNearestCode) {
  const Format& format = GetParam();
  for (int code = 0; code < format.largest; ++code) {
    const auto low = format.widen(static_cast<uint8_t>(code)),
               high = format.widen(static_cast<uint8_t>(code + 1));
    const float middle = low + (high - low) / 2;
    for (const float x : {std::nextafterf(middle, 0.0f), middle, std::nextafterf(middle, 1e9f)}) {
      ASSERT_EQ(format.narrow(x), format.Nearest(x)) << std::hexfloat << x;
      ASSERT_EQ(format.narrow(-x), format.Nearest(-x)) << std::hexfloat << x;
    }
  }
  constexpr uint32_t kSeed = 8;
  std::mt19937 random(kSeed);
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    ASSERT_EQ(format.narrow(x), format.Nearest(x)) << "seed " << kSeed << ' ' << std::hexfloat << x;
  }
}

TEST_P(Fp8Test, WhatIsTooLargeBecomesTheLargestNumber) {
  const Format& format = GetParam();
  for (const float x :
       {1e30f, INFINITY, 65504.0f, static_cast<float>(format.Value(format.largest)) * 1.06f}) {
    EXPECT_EQ(format.narrow(x), format.largest);
    EXPECT_EQ(format.narrow(-x), format.largest | 0x80);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Test, testing::Values(kE4m3, kE5m2),
                         [](const auto& info) { return std::string(info.param.name); });

#if KVTIER_HAS_CUDA_FP8

__nv_fp8_interpretation_t Interpretation(const Format& format) {
  return format.mantissa_bits == 3 ? __NV_E4M3 : __NV_E5M2;
}

TEST_P(Fp8Test, All256CodesWidenAsTheCudaToolkitDoes) {
  for (uint32_t i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    const __half_raw theirs = __nv_cvt_fp8_to_halfraw(code, Interpretation(GetParam()));
    const float ours = GetParam().widen(code), cuda = Fp32FromFp16(theirs.x);
    EXPECT_TRUE(std::isnan(cuda) ? std::isnan(ours)
                                 : std::bit_cast<uint32_t>(ours) == std::bit_cast<uint32_t>(cuda))
        << i;
  }
}

TEST_P(Fp8Test, All65536Fp16NarrowAsTheCudaToolkitDoes) {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = Fp32FromFp16(static_cast<uint16_t>(half));
    const uint8_t ours = GetParam().narrow(value);
    const uint8_t cuda = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, Interpretation(GetParam()));
    ASSERT_TRUE(std::isnan(value) ? GetParam().IsNan(ours) && GetParam().IsNan(cuda) : ours == cuda) << half;
  }
}

#else

TEST(Fp8ToolkitTest, IsNotInstalledHere) {
  std::cout << "cuda_fp8.h was not found when this was configured: FP8 is held to the specification alone\n";
}

#endif

}  // namespace
}  // namespace kvtier
