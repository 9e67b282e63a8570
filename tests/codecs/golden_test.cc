#include <gtest/gtest.h>

#include <fstream>

#include "tests/codecs/encoded_layer.h"
#include "tests/codecs/golden_input.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/simd_level_test.h"

namespace kvtier {
namespace {

const std::string kData = TestDataFolder();

class GoldenTest : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    auto fixture = Fixture::Load(kData + "/" + GetParam().fixture);
    ASSERT_TRUE(fixture.ok()) << fixture.status().ToString();
    shape_ = ShapeOf(GetParam(), *fixture);
    raw_ = RawOf(GetParam(), *fixture);
  }
  void TearDown() override { LimitSimd(AvailableSimdLevels().back()); }

  static Bytes Golden(const std::string& suffix) {
    auto bytes = ReadFileBytes(kData + "/golden/" + GetParam().name + "." + suffix);
    EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
    return bytes.ok() ? *bytes : Bytes{};
  }

  EncodedLayer Encode(const Codec& codec) const {
    BlockShape shape = shape_;
    if (codec.id == CodecId::kKv8) shape.nb = 0;  // it has no boost
    return EncodeLayer(codec, shape, raw_);
  }

  BlockShape shape_;
  Bytes raw_;
};

TEST_P(GoldenTest, EncodingGivesTheGoldenBytes) {
  for (const std::string& name : GetParam().codecs) {
    const Codec* codec = FindCodec(name);
    ASSERT_NE(codec, nullptr) << name;
    for (const SimdLevel level : AllSimdLevels()) {
      LimitSimd(level);
      const StrippedLayer stripped = StripPadding(Encode(*codec));
      EXPECT_TRUE(stripped.padding_is_zero) << name << ' ' << SimdLevelName(level);
      EXPECT_TRUE(stripped.sections == Golden(name)) << name << ' ' << SimdLevelName(level);
    }
  }
}

TEST_P(GoldenTest, DecodingGivesTheGoldenValues) {
  for (const std::string& name : GetParam().codecs) {
    const Codec* codec = FindCodec(name);
    ASSERT_NE(codec, nullptr) << name;
    const EncodedLayer layer = Encode(*codec);
    for (const SimdLevel level : AllSimdLevels()) {
      LimitSimd(level);
      EXPECT_TRUE(DecodeLayer(*codec, layer, DType::kFp16) == Golden(name + ".f16"))
          << name << ' ' << SimdLevelName(level);
    }
  }
}

TEST_P(GoldenTest, EveryPathDownGivesTheGoldenBytes) {
  const Codec &kv4p = *FindCodec("kv4p"), &kv42 = *FindCodec("kv42"), &kv2p = *FindCodec("kv2p");
  const EncodedLayer int4 = EncodeLayer(kv4p, shape_, raw_);
  const EncodedLayer k4v2 = CutLayer(int4, kv42);
  EXPECT_EQ(k4v2.part, EncodeLayer(kv42, shape_, raw_).part);
  for (const SimdLevel level : AllSimdLevels()) {
    LimitSimd(level);
    const EncodedLayer one_step = CutLayer(int4, kv2p), two_steps = CutLayer(k4v2, kv2p);
    EXPECT_EQ(one_step.part, EncodeLayer(kv2p, shape_, raw_).part);
    EXPECT_EQ(two_steps.part, one_step.part);
    EXPECT_TRUE(StripPadding(two_steps).sections == Golden("kv2p")) << SimdLevelName(level);
  }
}

/// What an image keeps of a stated error: a relative place of fp16, at least.
constexpr double kFp16Ulp = 1.0 / 2048;

TEST_P(GoldenTest, StatedErrorsEqualThoseOfTheNumpyReference) {
  std::ifstream file(kData + "/errors.txt");
  std::string name;
  double k_int4 = -1, k_int2 = -1, v_int4 = -1, v_int2 = -1;
  while (name != GetParam().name && file >> name) file >> k_int4 >> k_int2 >> v_int4 >> v_int2;
  ASSERT_EQ(name, GetParam().name);
  for (const char* codec : {"kv4p", "kv42", "kv2p"}) {
    const LayerError error = EncodeLayer(*FindCodec(codec), shape_, raw_).error;
    EXPECT_NEAR(error.k_int4, k_int4, k_int4 * kFp16Ulp);
    EXPECT_NEAR(error.k_int2, k_int2, k_int2 * kFp16Ulp);
    EXPECT_NEAR(error.v_int4, v_int4, v_int4 * kFp16Ulp);
    EXPECT_NEAR(error.v_int2, v_int2, v_int2 * kFp16Ulp);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTest, testing::ValuesIn(GoldenCases()), [](const auto& info) {
  std::string name = info.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace kvtier
