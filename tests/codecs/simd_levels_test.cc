// Every codec gives the bytes of the portable kernels on every SIMD level, for every 16-bit number there is.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <random>

#include "kernels/numerics.h"
#include "tests/codecs/encoded_layer.h"
#include "tests/support/simd_level_test.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 65536;
constexpr uint32_t kNumbers = 1 << 16;

/// A layer that holds kNumbers elements.
BlockShape Shape(const Codec& codec, DType dtype) {
  BlockShape shape = {.layers = 1,
                      .kv_heads = 2,
                      .k_dim = 128,
                      .v_dim = 128,
                      .tokens = 128,
                      .dtype = dtype,
                      .nraw = 1,
                      .nb = 64};
  if (!codec.supports(shape)) shape.nb = 0;
  if (!codec.supports(shape)) shape.nraw = 0;
  return shape;
}

bool IsFinite(DType dtype, uint16_t number) {
  const uint16_t limit = dtype == DType::kBf16 ? kBf16AboveFp16 : kFp16Infinity;
  return (number & 0x7fff) < limit;
}

/// How the numbers lie in a layer: neighbours in a channel close to each other, or at random.
enum class Order { kDownTheChannels, kRandom };

/// All numbers, from number `first` on; zero in place of those that are not finite.
Bytes AllNumbers(DType dtype, Order order, uint32_t first) {
  std::vector<uint16_t> numbers(kNumbers);
  if (order == Order::kRandom) {
    std::iota(numbers.begin(), numbers.end(), 0);
    std::ranges::shuffle(numbers, std::mt19937(kSeed));
  } else {
    for (uint32_t i = 0; i < kNumbers; ++i)  // element (plane and head, token, channel)
      numbers[i] = static_cast<uint16_t>((i & 0xc000) + (i & 127) * 128 + (i >> 7 & 127));
  }
  Bytes raw(2 * kNumbers);
  for (uint32_t i = 0; i < kNumbers; ++i) {
    const auto number = static_cast<uint16_t>(numbers[i] + first);
    Store16(&raw[2 * i], IsFinite(dtype, number) ? number : 0);
  }
  return raw;
}

/// Within one place of the fp16 that an image keeps.
bool IsSameStated(float error, float expected) {
  return std::abs(Fp16FromFp32(error) - Fp16FromFp32(expected)) <= 1;
}

class SimdLevelsTest : public SimdLevelTest {};

TEST_P(SimdLevelsTest, EveryFiniteNumberIsEncodedAndDecodedAsByThePortableKernels) {
  for (const Codec* codec : AllCodecs()) {
    for (const DType dtype : {DType::kFp16, DType::kBf16}) {
      const BlockShape shape = Shape(*codec, dtype);
      if (!codec->supports(shape)) continue;
      for (const Order order : {Order::kDownTheChannels, Order::kRandom}) {
        // Every number in K and in V.
        for (const uint32_t first : {0u, kNumbers / 2}) {
          const Bytes raw = AllNumbers(dtype, order, first);
          LimitSimd(SimdLevel::kPortable);
          const EncodedLayer expected = EncodeLayer(*codec, shape, raw);
          const Bytes decoded = DecodeLayer(*codec, expected, DType::kFp16);
          LimitSimd(GetParam());
          const EncodedLayer layer = EncodeLayer(*codec, shape, raw);
          EXPECT_TRUE(layer.part == expected.part) << codec->name;
          EXPECT_TRUE(IsSameStated(layer.error.k_int4, expected.error.k_int4)) << codec->name;
          EXPECT_TRUE(IsSameStated(layer.error.k_int2, expected.error.k_int2)) << codec->name;
          EXPECT_TRUE(IsSameStated(layer.error.v_int4, expected.error.v_int4)) << codec->name;
          EXPECT_TRUE(IsSameStated(layer.error.v_int2, expected.error.v_int2)) << codec->name;
          EXPECT_TRUE(DecodeLayer(*codec, layer, DType::kFp16) == decoded) << codec->name;
        }
      }
    }
  }
}

TEST_P(SimdLevelsTest, EveryNumberIsJudgedFiniteOrNotByItself) {
  const Codec& codec = *FindCodec("kv4p");
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    const BlockShape shape = {
        .layers = 1, .kv_heads = 1, .k_dim = 16, .v_dim = 48, .tokens = 5, .dtype = dtype};
    ASSERT_TRUE(codec.supports(shape));
    Bytes raw(RawLayerBytes(shape));
    for (uint32_t number = 0; number < kNumbers; ++number) {
      std::byte* const at = &raw[2 * (number % (raw.size() / 2))];
      Store16(at, static_cast<uint16_t>(number));
      ASSERT_EQ(LayerIsFinite(shape, {.raw = raw}), IsFinite(dtype, static_cast<uint16_t>(number))) << number;
      Store16(at, 0);
    }
  }
}

TEST_P(SimdLevelsTest, EveryNumberOfARawLayerIsConvertedAsByThePortableKernels) {
  for (const DType from : {DType::kFp16, DType::kBf16}) {
    const BlockShape shape = Shape(*FindCodec("raw16"), from);
    Bytes raw(2 * kNumbers);
    for (uint32_t i = 0; i < kNumbers; ++i) Store16(&raw[2 * i], static_cast<uint16_t>(i));
    const EncodedLayer layer = EncodeLayer(*FindCodec("raw16"), shape, raw);
    for (const DType to : {DType::kFp16, DType::kBf16, DType::kFp32}) {
      LimitSimd(SimdLevel::kPortable);
      const Bytes expected = DecodeLayer(*FindCodec("raw16"), layer, to);
      LimitSimd(GetParam());
      EXPECT_TRUE(DecodeLayer(*FindCodec("raw16"), layer, to) == expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SimdLevelsTest, testing::ValuesIn(AllSimdLevels()), SimdLevelParamName);

}  // namespace
}  // namespace kvtier
