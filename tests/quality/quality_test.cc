#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <string>

#include "kernels/numerics.h"
#include "kernels/simd/dispatch.h"
#include "tests/quality/attend_score.h"
#include "tests/quality/score.h"
#include "tests/support/blocks.h"
#include "tests/support/paths.h"

namespace kvtier::quality {
namespace {

constexpr uint32_t kQueryStep = 16;  // a few of the queries, for speed
const char* const kFixtures[] = {"smollm2-135m", "qwen2.5-coder-0.5b"};

Fixture Load(const std::string& name) {
  Result<Fixture> fixture = Fixture::Load(TestDataFolder() + "/" + name);
  KVTIER_CHECK(fixture.ok());
  return std::move(*fixture);
}

Method Find(const std::string& name) {
  for (const auto& methods : {KvtierMethods(), ReferenceMethods()}) {
    const auto found = std::ranges::find(methods, name, &Method::name);
    if (found != methods.end()) return *found;
  }
  std::fprintf(stderr, "no method %s\n", name.c_str());
  std::abort();
}

/// A fixture and the right outputs, and scores by a method's name.
class Bench {
 public:
  explicit Bench(const std::string& fixture) : fixture_(Load(fixture)), judge_(fixture_, kQueryStep) {}

  Score Of(const std::string& method) const {
    const Result<Score> score = judge_.Try(Find(method));
    EXPECT_TRUE(score.ok()) << score.status().ToString();
    return score.ok() ? *score : Score{};
  }
  const Fixture& fixture() const { return fixture_; }

 private:
  Fixture fixture_;
  Judge judge_;
};

/// Most that a method may cost: what `kvtier-bench quality` and these queries give, and a few percent.
struct Limits {
  const char* method;
  double bits;
  struct Errors {
    double k, v, attention, cosine_distance;
  } smollm2, qwen;
};
constexpr Limits kLimits[] = {
    {"raw16", 16.06, {0, 0, 0, 0}, {0, 0, 0, 0}},
    {"raw8", 8.04, {0.0271, 0.0277, 0.051, 0.00124}, {0.0255, 0.0281, 0.234, 0.02549}},
    {"kv8", 8.32, {0.0033, 0.0237, 0.016, 0.0001}, {0.0022, 0.0236, 0.018, 0.00012}},
    {"kv4p T128", 4.25, {0.0556, 0.0981, 0.091, 0.00393}, {0.036, 0.0971, 0.104, 0.00453}},
    {"kv4p T128 by kv8", 4.25, {0.0556, 0.1008, 0.092, 0.00403}, {0.036, 0.0999, 0.106, 0.00471}},
    {"kv4p T64", 4.40, {0.0489, 0.0981, 0.085, 0.0031}, {0.0311, 0.0971, 0.097, 0.00395}},
    {"kv42 T128", 3.25, {0.0556, 0.3938, 0.256, 0.02825}, {0.036, 0.3906, 0.298, 0.03201}},
    {"kv42 T64", 3.39, {0.0489, 0.3938, 0.253, 0.02778}, {0.0311, 0.3906, 0.294, 0.03133}},
    {"kv2p T128 nb32", 2.76, {0.118, 0.3938, 0.283, 0.03628}, {0.0776, 0.3906, 0.318, 0.04273}},
    {"kv2p T128 nb16", 2.51, {0.158, 0.3938, 0.302, 0.04127}, {0.1046, 0.3906, 0.341, 0.05101}},
    {"kv2p T128 nb8", 2.39, {0.1841, 0.3938, 0.331, 0.04898}, {0.1218, 0.3906, 0.371, 0.06169}},
    {"kv2p T128 nb0", 2.25, {0.225, 0.3938, 0.393, 0.06779}, {0.1442, 0.3906, 0.406, 0.07267}},
    {"kv2p T64 nb32", 2.92, {0.1023, 0.3938, 0.274, 0.03405}, {0.0658, 0.3906, 0.312, 0.0393}},
};

void PrintTo(const Limits& limits, std::ostream* out) {
  *out << limits.method;
}

class QualityTest : public testing::TestWithParam<Limits> {};

TEST_P(QualityTest, S11_AttentionOnRealDataStaysWithinTheErrorOfTheFormat) {
  const Limits& limits = GetParam();
  for (const char* name : kFixtures) {
    const Limits::Errors& most = name == kFixtures[0] ? limits.smollm2 : limits.qwen;
    const Score score = Bench(name).Of(limits.method);
    EXPECT_LE(score.bits_per_element, limits.bits) << name;
    EXPECT_LE(score.KError(), most.k) << name;
    EXPECT_LE(score.VError(), most.v) << name;
    EXPECT_LE(score.AttentionError(), most.attention) << name;
    EXPECT_LE(score.CosineDistance(), most.cosine_distance) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, QualityTest, testing::ValuesIn(kLimits), [](const auto& param) {
  std::string name = param.param.method;
  std::ranges::replace(name, ' ', '_');
  return name;
});

TEST(QualityTableTest, EveryCodecHasLimits) {
  for (const Method& method : KvtierMethods())
    EXPECT_NE(std::ranges::find(kLimits, method.name, &Limits::method), std::end(kLimits)) << method.name;
}

TEST(QualityTableTest, S11_EveryRungCostsFewerBitsAndMoreError) {
  for (const char* name : kFixtures) {
    const Bench bench(name);
    const char* const ladder[] = {"raw16",          "kv8",           "kv4p T128",    "kv42 T128",
                                  "kv2p T128 nb32", "kv2p T128 nb8", "kv2p T128 nb0"};
    Score upper = bench.Of(ladder[0]);
    for (size_t i = 1; i < std::size(ladder); ++i) {
      const Score lower = bench.Of(ladder[i]);
      EXPECT_LT(lower.bits_per_element, upper.bits_per_element) << name << " " << ladder[i];
      EXPECT_GT(lower.AttentionError(), upper.AttentionError()) << name << " " << ladder[i];
      upper = lower;
    }
  }
}

TEST(QualityTableTest, Int2IsMoreExactThanKivi2AndSmaller) {
  for (const char* name : kFixtures) {
    const Bench bench(name);
    const Score kivi = bench.Of("KIVI-2 g32");
    for (const char* method : {"kv2p T128 nb32", "kv2p T128 nb16", "kv2p T128 nb8"}) {
      const Score score = bench.Of(method);
      EXPECT_LT(score.AttentionError(), 0.9 * kivi.AttentionError()) << name << " " << method;
      EXPECT_LT(score.bits_per_element, kivi.bits_per_element - 0.2) << name << " " << method;
    }
  }
}

TEST(QualityTableTest, Int4IsCloseToKivi4WithThreeQuartersOfABitLess) {
  for (const char* name : kFixtures) {
    const Bench bench(name);
    const Score score = bench.Of("kv4p T128"), kivi = bench.Of("KIVI-4 g32");
    EXPECT_LT(score.bits_per_element, kivi.bits_per_element - 0.75) << name;
    EXPECT_LT(score.AttentionError(), 1.35 * kivi.AttentionError()) << name;
  }
}

TEST(QualityTableTest, Int4IsMoreExactThanFormatsWithOneRangeAToken) {
  for (const char* name : kFixtures) {
    const Bench bench(name);
    const Score score = bench.Of("kv4p T128");
    for (const char* method : {"INT4 per token", "q4_0", "q4_0 rotated"}) {
      const Score other = bench.Of(method);
      EXPECT_LT(score.AttentionError(), other.AttentionError()) << name << " " << method;
      EXPECT_LT(score.bits_per_element, other.bits_per_element) << name << " " << method;
    }
  }
}

// Biased channels of magnitude 100 and more share a range, or a binade, with all others: the error of K hides
// it.
TEST(QualityTableTest, S11_OutlierChannelsShowInAttentionAndNotInTheErrorOfK) {
  const Bench bench("qwen2.5-coder-0.5b");
  const LayerScore kv4p = bench.Of("kv4p T128").layers[0], kv8 = bench.Of("kv8").layers[0];
  for (const char* method : {"INT4 per token", "q4_0", "q4_0 rotated"}) {
    const LayerScore other = bench.Of(method).layers[0];
    EXPECT_GT(other.attention_error, 0.9) << method;  // as wrong as nothing at all
    EXPECT_GT(other.attention_error, 8 * kv4p.attention_error) << method;
  }
  for (const char* method : {"raw8", "q8_0", "q8_0 rotated"})
    EXPECT_GT(bench.Of(method).layers[0].attention_error, 10 * kv8.attention_error) << method;
  const LayerScore q8 = bench.Of("q8_0 rotated").layers[0];
  EXPECT_LT(q8.k_error, kv4p.k_error);
  EXPECT_GT(q8.attention_error, 2 * kv4p.attention_error);
}

TEST(QualityTableTest, ReferencesTakeTheBitsOfTheirDefinitions) {
  const Bench bench("smollm2-135m");
  const double sink = 1.0 / 512;  // one token of 512 is FP16
  EXPECT_NEAR(bench.Of("KIVI-4 g32").bits_per_element, 5 + 11 * sink, 0.02);
  EXPECT_NEAR(bench.Of("KIVI-2 g32").bits_per_element, 3 + 13 * sink, 0.02);
  EXPECT_NEAR(bench.Of("INT4 per token").bits_per_element, 4.5 + 11.5 * sink, 0.001);
  EXPECT_EQ(bench.Of("q8_0").bits_per_element, 8.5);
  EXPECT_EQ(bench.Of("q4_0 rotated").bits_per_element, 4.5);
}

/// Limits the level for its life.
class LevelScope {
 public:
  explicit LevelScope(SimdLevel level) { LimitSimd(level); }
  LevelScope(const LevelScope&) = delete;
  LevelScope& operator=(const LevelScope&) = delete;
  ~LevelScope() { LimitSimd(before_); }

 private:
  SimdLevel before_ = CurrentSimdLevel();
};

// Integer dot products quantize the query and the probabilities: an error of its own, small beside the
// format's.
TEST(QualityTableTest, S11_AttentionOnCodesAddsLittleToTheErrorOfTheFormat) {
  for (const char* name : kFixtures) {
    const Fixture fixture = Load(name);
    for (const SimdLevel level : AvailableSimdLevels()) {
      const LevelScope scope(level);
      for (const Codec* codec : AllCodecs()) {
        const Result<AttendScore> score = ScoreAttend(*codec, fixture, 4 * kQueryStep);
        ASSERT_TRUE(score.ok()) << score.status().ToString();
        const AttendLayerScore all = score->Overall();
        EXPECT_LE(all.attended, 1.07 * all.decoded + 1e-5)
            << name << " " << codec->name << " " << SimdLevelName(level);
        EXPECT_LE(all.added, 0.25 * all.decoded + 1e-5)
            << name << " " << codec->name << " " << SimdLevelName(level);
      }
    }
  }
}

/// Relative errors of a layer of FP16 values, decoded to `dtype`: fp16 or fp32.
struct KvErrors {
  double k, v;
};
KvErrors MeasuredErrors(const ImageView& image, uint16_t layer, std::span<const std::byte> raw, DType dtype) {
  const BlockShape& shape = image.identity.shape;
  const size_t elements = RawLayerBytes(shape) / 2, plane = elements / 2, bytes = DTypeBytes(dtype);
  std::vector<std::byte> decoded(bytes * elements);
  const auto row = static_cast<int64_t>(bytes * shape.k_dim);
  KvLayerView view = {.head_stride = row * shape.tokens,
                      .token_stride = row,
                      .channel_stride = static_cast<int64_t>(bytes),
                      .dtype = dtype};
  view.k = decoded.data();
  view.v = decoded.data() + bytes * plane;
  image.codec->decode(shape, image.table[layer].planes, image.Parts(layer), view);
  double square[2] = {}, error[2] = {};
  for (size_t i = 0; i < elements; ++i) {
    const double x = Fp32FromFp16(Load16(raw.data() + 2 * i));
    float value = 0;
    if (dtype == DType::kFp32) {
      std::memcpy(&value, &decoded[4 * i], sizeof value);
    } else {
      value = Fp32FromFp16(Load16(&decoded[2 * i]));
    }
    square[i / plane] += x * x;
    error[i / plane] += std::pow(x - value, 2);
  }
  return {.k = std::sqrt(error[0] / square[0]), .v = std::sqrt(error[1] / square[1])};
}

TEST(QualityTableTest, S10_TheStoredErrorsOfOutlierLayersAreTheMeasuredOnes) {
  const Fixture fixture = Load("qwen2.5-coder-0.5b");
  constexpr uint16_t kTokens = 128;
  constexpr double kFp16Adds = 1.0 / 2048;  // at most, of a number in its normal range
  const BlockShape shape = fixture.Shape(kTokens, 0, 32);
  const std::vector<std::byte> raw = fixture.RawBlock(kTokens, kTokens);
  for (const char* codec : {"kv8", "kv4p", "kv42", "kv2p"}) {
    const Result<OwnedImage> owned = EncodeOwned(*FindCodec(codec), MakeIdentity(1, shape), raw);
    ASSERT_TRUE(owned.ok());
    const Result<ImageView> image = ParseImage(owned->bytes);
    ASSERT_TRUE(image.ok());
    const bool is_kv8 = image->codec->id == CodecId::kKv8;  // measured before what a destination adds
    for (uint16_t layer = 0; layer < shape.layers; ++layer) {
      const auto layer_raw = std::span(raw).subspan(layer * RawLayerBytes(shape));
      const KvErrors errors = MeasuredErrors(*image, layer, layer_raw, is_kv8 ? DType::kFp32 : DType::kFp16);
      EXPECT_NEAR(image->KError(layer), errors.k, errors.k / 1000) << codec << ", layer " << layer;
      EXPECT_NEAR(image->VError(layer), errors.v, errors.v / 1000) << codec << ", layer " << layer;
      const KvErrors in_fp16 = MeasuredErrors(*image, layer, layer_raw, DType::kFp16);
      EXPECT_NEAR(image->KError(layer), in_fp16.k, kFp16Adds) << codec << ", layer " << layer;
      EXPECT_NEAR(image->VError(layer), in_fp16.v, kFp16Adds) << codec << ", layer " << layer;
    }
  }
}

}  // namespace
}  // namespace kvtier::quality
