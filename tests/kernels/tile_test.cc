#include "kernels/tile.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace kvtier {
namespace {

class TileTest : public testing::TestWithParam<uint32_t> {};

TEST_P(TileTest, ByteJHoldsTheFourCodesAQuarterApart) {
  const uint32_t n = GetParam(), quarter = n / 4;
  for (uint32_t element = 0; element < n; ++element) {
    for (uint8_t code = 0; code < 16; ++code) {
      std::vector<uint8_t> codes(n), high(quarter), low(quarter);
      codes[element] = code;
      PackTile<kHighShift>(codes.data(), n, high.data());
      PackTile<kLowShift>(codes.data(), n, low.data());
      for (uint32_t j = 0; j < quarter; ++j) {
        const uint32_t shift = 2 * (element / quarter);
        EXPECT_EQ(high[j], j == element % quarter ? code / 4 << shift : 0);
        EXPECT_EQ(low[j], j == element % quarter ? code % 4 << shift : 0);
      }
    }
  }
}

TEST_P(TileTest, UnpackingBothPlanesGivesTheCodesBack) {
  const uint32_t n = GetParam();
  std::mt19937 random(n);
  std::vector<uint8_t> codes(n), high(n / 4), low(n / 4), back(n);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % 16);
  PackTile<kHighShift>(codes.data(), n, high.data());
  PackTile<kLowShift>(codes.data(), n, low.data());
  UnpackTile<kHighShift>(high.data(), n, back.data());
  for (uint32_t i = 0; i < n; ++i) EXPECT_EQ(back[i], codes[i] & 12);
  UnpackTile<kLowShift>(low.data(), n, back.data());
  EXPECT_EQ(back, codes);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TileTest, testing::Values(4, 8, 12, 16, 20, 32, 36, 48, 60, 64));

/// Entry of the Sylvester matrix.
int Sign(uint32_t row, uint32_t column) {
  return __builtin_popcount(row & column) % 2 == 0 ? 1 : -1;
}

TEST(HadamardTest, MatchesTheMatrixOnIntegers) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::array<int32_t, 64> z, transformed;
    for (int32_t& value : z) value = static_cast<int32_t>(random() % 31) - 15;
    transformed = z;
    Hadamard64(transformed.data());
    for (uint32_t row = 0; row < 64; ++row) {
      int sum = 0;
      for (uint32_t column = 0; column < 64; ++column) sum += Sign(row, column) * z[column];
      EXPECT_EQ(transformed[row], sum);
    }
  }
}

TEST(HadamardTest, RoundsInFp32AsStagesOfAscendingDistance) {
  std::mt19937 random(8);
  std::uniform_real_distribution<float> uniform(-3, 3);
  for (int round = 0; round < 1000; ++round) {
    std::array<float, 64> expected, transformed;
    for (float& value : expected) value = uniform(random);
    transformed = expected;
    Hadamard64(transformed.data());
    for (uint32_t h = 1; h < 64; h *= 2) {
      for (uint32_t i = 0; i < 64; ++i) {
        if (i & h) continue;
        const float a = expected[i], b = expected[i + h];
        expected[i] = a + b;
        expected[i + h] = a - b;
      }
    }
    ASSERT_EQ(transformed, expected);
  }
}

TEST(DequantizeTest, AKValueEqualsTheFusedMultiplyAdd) {
  std::mt19937 random(9);
  for (int round = 0; round < 200'000; ++round) {
    const float s = Fp32FromFp16(static_cast<uint16_t>(random() % kFp16Infinity));
    const float m = Fp32FromFp16(static_cast<uint16_t>(random() % kFp16Infinity | (random() % 2) << 15));
    const auto code = static_cast<uint8_t>(random() % 16);
    ASSERT_EQ(DequantizeK(code, s, m), std::fmaf(code, s, m));
    const float m_int2 = KMinimumInt2(s, m);
    ASSERT_EQ(m_int2, std::fmaf(1.5f, s, m));
    const auto high = static_cast<uint8_t>(code & 12);
    ASSERT_EQ(DequantizeK(high, s, m_int2), std::fmaf(static_cast<float>(high / 4), 4 * s, m_int2));
  }
}

}  // namespace
}  // namespace kvtier
