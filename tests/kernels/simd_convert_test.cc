// Conversions of elements on every set of vector instructions that this CPU has: the bytes of the portable
// body, for every number there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "kernels/simd/convert_simd.h"
#include "kernels/simd/copy_simd.h"
#include "tests/codecs/guarded_memory.h"
#include "tests/support/simd_level_test.h"

namespace kvtier {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint32_t kSeed = 16;
constexpr uint32_t kNumbers = 1 << 16;
constexpr DType kSources[] = {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2};
constexpr DType kTargets[] = {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2, DType::kFp32};
/// The last two take FP8 out of the range of fp16, or fp32 into subnormals.
constexpr float kScales[] = {1.0f, 0.37f, 0.125f, 1000.0f, 3e-38f};
/// Three groups of 64 and some.
constexpr uint32_t kRow = 240;

/// Whether vectors may see numbers that are not finite, or too large for fp16: pieces with such are left to
/// the portable body.
enum class Numbers { kAll, kFitting };

/// Every number of the type, often enough to fill kNumbers elements, in an order of their own.
Bytes NumbersOf(DType dtype, float scale, Numbers which) {
  std::vector<uint32_t> order(kNumbers);
  for (uint32_t i = 0; i < kNumbers; ++i) order[i] = i;
  std::ranges::shuffle(order, std::mt19937(kSeed));
  const uint32_t bytes = DTypeBytes(dtype), mask = bytes == 1 ? 0x7f : 0x7fff;
  Bytes raw(size_t{kNumbers} * bytes);
  for (uint32_t i = 0; i < kNumbers; ++i) {
    const bool fits = internal::FitsFp16(dtype, scale, order[i] & mask);
    const auto bits = static_cast<uint16_t>(which == Numbers::kAll || fits ? order[i] : 0);
    memcpy(&raw[size_t{i} * bytes], &bits, bytes);  // little endian
  }
  return raw;
}

/// In rotated form row by row, otherwise all at once.
template <typename Convert>
Bytes ConvertAll(const RowConversion& conversion, const Bytes& raw, const Convert& convert) {
  const uint32_t from = DTypeBytes(conversion.from), to = DTypeBytes(conversion.to);
  const size_t n = raw.size() / from, step = conversion.form == VForm::kRotated ? kRow : n;
  Bytes out(n * to, std::byte{0xA5});
  for (size_t first = 0; first + step <= n; first += step)
    convert(&raw[first * from], step, &out[first * to]);
  return out;
}

class SimdConvertTest : public SimdLevelTest {};

TEST_P(SimdConvertTest, EveryNumberBecomesWhatThePortableBodyMakesOfIt) {
  for (const DType from : kSources) {
    for (const float scale : kScales) {
      if (DTypeBytes(from) == 2 && scale < 0.1f) continue;  // of FP8 targets, where 0.37 says enough
      for (const Numbers which : {Numbers::kAll, Numbers::kFitting}) {
        const Bytes raw = NumbersOf(from, scale, which);
        for (const DType to : kTargets) {
          for (const VForm form : {VForm::kPlain, VForm::kRotated}) {
            const RowConversion conversion = {.from = from, .to = to, .scale = scale, .form = form};
            const Bytes expected =
                ConvertAll(conversion, raw, [&](const std::byte* source, size_t n, std::byte* target) {
                  ConvertRow(conversion, source, n, target);
                });
            for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
              const Bytes actual =
                  ConvertAll(conversion, raw, [&](const std::byte* source, size_t n, std::byte* target) {
                    ConvertSimd(conversion, source, n, target, stores);
                  });
              FinishStores(stores);
              EXPECT_TRUE(actual == expected || (from == to && form == VForm::kPlain))
                  << int(from) << " to " << int(to) << ", scale " << scale << ", form " << int(form);
            }
          }
        }
      }
    }
  }
}

TEST_P(SimdConvertTest, TheSameTypeIsCopied) {
  for (const DType dtype : kSources) {
    const Bytes raw = NumbersOf(dtype, 1, Numbers::kAll);
    Bytes out(raw.size());
    ConvertSimd({.from = dtype, .to = dtype, .scale = 3}, raw.data(), kNumbers, out.data(),
                Stores::kStreaming);
    FinishStores(Stores::kStreaming);
    EXPECT_TRUE(out == raw) << int(dtype);
  }
}

TEST_P(SimdConvertTest, RowsOfEveryLengthAtAnyAddressAreReadAndWrittenAndNothingBeside) {
  for (const DType from : kSources) {
    const Bytes raw = NumbersOf(from, 1, Numbers::kFitting);
    for (const DType to : kTargets) {
      for (uint32_t n = 16; n <= kMaxHeadDim; n += 16) {
        for (const GuardedEnd end : {GuardedEnd::kFront, GuardedEnd::kBack}) {
          const VForm form = n % 32 == 0 ? VForm::kPlain : VForm::kRotated;
          const RowConversion conversion = {.from = from, .to = to, .scale = 0.37f, .form = form};
          const size_t odd = n / 16 % 3;  // bytes that shift the target
          const GuardedMemory source(n * DTypeBytes(from), end), target(n * DTypeBytes(to) + odd, end);
          std::copy_n(raw.begin() + n, source.span().size(), source.span().begin());
          std::ranges::fill(target.span(), std::byte{0xA5});
          ConvertSimd(conversion, source.span().data(), n, target.span().data() + odd, Stores::kStreaming);
          FinishStores(Stores::kStreaming);
          Bytes expected(target.span().size(), std::byte{0xA5});
          if (from == to && form == VForm::kPlain) {
            std::copy_n(source.span().begin(), source.span().size(),
                        expected.begin() + static_cast<ptrdiff_t>(odd));
          } else {
            ConvertRow(conversion, source.span().data(), n, expected.data() + odd);
          }
          EXPECT_TRUE(std::ranges::equal(target.span(), expected))
              << int(from) << " to " << int(to) << ", n " << n;
        }
      }
    }
  }
}

/// A scale that no model may have gives what the portable body gives.
TEST_P(SimdConvertTest, ScalesThatAreNoneAreMultipliedAllTheSame) {
  for (const float scale : {0.0f, -2.0f, 1e38f, std::numeric_limits<float>::infinity()}) {
    for (const DType from : {DType::kE4m3, DType::kE5m2}) {
      for (const DType to : kTargets) {
        if (from == to) continue;
        const RowConversion conversion = {.from = from, .to = to, .scale = scale};
        const Bytes raw(256);
        Bytes expected(4 * raw.size()), actual(expected.size());
        ConvertRow(conversion, raw.data(), raw.size(), expected.data());
        ConvertSimd(conversion, raw.data(), raw.size(), actual.data(), Stores::kCached);
        EXPECT_TRUE(actual == expected) << scale << ", " << int(from) << " to " << int(to);
      }
    }
  }
}

/// The 16 bits, or 32, that one number becomes.
uint32_t Converted(DType from, uint16_t bits, DType to, VForm form = VForm::kPlain) {
  Bytes raw(128), out(256);
  memcpy(raw.data(), &bits, sizeof bits);
  ConvertSimd({.from = from, .to = to, .form = form}, raw.data(), 64, out.data(), Stores::kCached);
  uint32_t result = 0;
  memcpy(&result, out.data(), DTypeBytes(to));
  return result;
}

TEST_P(SimdConvertTest, NanKeepsOfItsBitsWhatTheTargetSays) {
  EXPECT_EQ(Converted(DType::kFp16, 0xfd01, DType::kFp32), 0xffa02000u) << "signalling, and it stays so";
  EXPECT_EQ(Converted(DType::kFp16, 0xfd01, DType::kBf16), 0xffe0u);
  EXPECT_EQ(Converted(DType::kBf16, 0xff81, DType::kFp32), 0xff810000u);
  EXPECT_EQ(Converted(DType::kBf16, 0xff81, DType::kFp16), 0xfe00u);
  EXPECT_EQ(Converted(DType::kE4m3, 0xff, DType::kFp32), 0x7fc00000u);
  EXPECT_EQ(Converted(DType::kE5m2, 0xfd, DType::kFp16), 0xfe00u);
  EXPECT_EQ(Converted(DType::kFp16, 0xfd01, DType::kE4m3), 0xffu);
  EXPECT_EQ(Converted(DType::kFp16, 0xfd01, DType::kFp32, VForm::kRotated), 0x7fc00000u) << "a sum of NaN";
}

TEST_P(SimdConvertTest, OnlyFp16AndFp8EndAtTheirLimits) {
  EXPECT_EQ(Converted(DType::kBf16, 0x7f7f, DType::kFp32), 0x7f7f0000u);
  EXPECT_EQ(Converted(DType::kFp16, 0x7c00, DType::kBf16), 0x7f80u);
  EXPECT_EQ(Converted(DType::kBf16, 0xff80, DType::kFp16), 0xfbffu);
  EXPECT_EQ(Converted(DType::kFp16, 0xfc00, DType::kE4m3), 0xfeu);
}

INSTANTIATE_TEST_SUITE_P(Levels, SimdConvertTest, testing::ValuesIn(AllSimdLevels()), SimdLevelParamName);

}  // namespace
}  // namespace kvtier
