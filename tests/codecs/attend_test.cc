// Attention on encoded layers, for every row of the codec table and every SIMD level.
#include <gtest/gtest.h>

#include <string>

#include "kernels/fp8.h"
#include "kernels/simd/attend_simd.h"
#include "kernels/simd/dispatch.h"
#include "tests/codecs/attention_oracle.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 20261;
constexpr Fp8Scales kScales = {.k = 0.125f, .v = 0.01f};

/// Kernels run at `level` while this lives.
class AtLevel {
 public:
  explicit AtLevel(SimdLevel level) { LimitSimd(level); }
  ~AtLevel() { LimitSimd(before_); }

 private:
  const SimdLevel before_ = CurrentSimdLevel();
};

bool IsInteger(const Codec& codec) {
  return codec.precision < Precision::kBits8 && CurrentSimdLevel() != SimdLevel::kPortable;
}

/// Attention with the unrounded decode of the same codes differs by this much at most. The integer path
/// rounds q * s to int8 and p * s to uint8.
double BoundFor(const Codec& codec) {
  return IsInteger(codec) ? 0.02 : 1e-5;
}

std::vector<BlockShape> ShapesOf(const Codec& codec) {
  std::vector<BlockShape> supported;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}) {
    for (BlockShape shape : {
             BlockShape{.layers = 1, .kv_heads = 2, .k_dim = 128, .v_dim = 128, .tokens = 128},
             BlockShape{.layers = 1, .kv_heads = 3, .k_dim = 64, .v_dim = 64, .tokens = 64},
             BlockShape{.layers = 1, .kv_heads = 1, .k_dim = 80, .v_dim = 80, .tokens = 37},
             BlockShape{.layers = 1, .kv_heads = 1, .k_dim = 96, .v_dim = 112, .tokens = 66},
             BlockShape{.layers = 1, .kv_heads = 1, .k_dim = 192, .v_dim = 192, .tokens = 100},
             BlockShape{.layers = 1, .kv_heads = 2, .k_dim = 16, .v_dim = 256, .tokens = 4},
             BlockShape{.layers = 1, .kv_heads = 1, .k_dim = 256, .v_dim = 48, .tokens = 126},
             BlockShape{.layers = 1, .kv_heads = 5, .k_dim = 48, .v_dim = 16, .tokens = 1},
         }) {
      shape.dtype = dtype;
      for (const uint8_t nraw : {0, 1, 4}) {
        for (const uint32_t nb : {0u, 4u, shape.k_dim / 8 * 4u, std::min<uint32_t>(shape.k_dim, 252)}) {
          shape.nraw = nraw;
          shape.nb = static_cast<uint8_t>(nb);
          if (codec.supports(shape)) supported.push_back(shape);
        }
      }
    }
  }
  return supported;
}

std::string Describe(const BlockShape& s, uint32_t group) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb) + " dtype" + std::to_string(static_cast<int>(s.dtype)) + " group" +
         std::to_string(group) + " at " + std::string(SimdLevelName(CurrentSimdLevel()));
}

Bytes RandomRaw(const BlockShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Bytes raw(RawLayerBytes(shape));
  const size_t bytes = DTypeBytes(shape.dtype);
  for (size_t i = 0; i * bytes < raw.size(); ++i) {
    const float value = normal(random);
    std::byte* at = &raw[i * bytes];
    if (shape.dtype == DType::kFp16) Store16(at, Fp16FromFp32(value));
    if (shape.dtype == DType::kBf16) Store16(at, Bf16FromFp32(value));
    if (shape.dtype == DType::kE4m3) *at = static_cast<std::byte>(E4m3FromFp32(value / kScales.k));
    if (shape.dtype == DType::kE5m2) *at = static_cast<std::byte>(E5m2FromFp32(value / kScales.k));
  }
  return raw;
}

/// Queries with their memory.
struct Queries {
  Queries(const BlockShape& shape, uint32_t group, uint32_t seed)
      : values(RandomQueries(seed, size_t{group} * shape.kv_heads * shape.k_dim, 1)),
        query{.q = values.data(),
              .query_heads = group * shape.kv_heads,
              .scale = 1 / std::sqrt(static_cast<float>(shape.k_dim)),
              .scales = IsFp8(shape.dtype) ? kScales : Fp8Scales{}} {}
  std::vector<float> values;
  AttentionQuery query;
};

class AttendTest : public testing::TestWithParam<const Codec*> {
 protected:
  const Codec& codec_ = *GetParam();
};

TEST_P(AttendTest, EqualsAttentionOverTheUnroundedDecode) {
  uint32_t seed = kSeed;
  for (const BlockShape& shape : ShapesOf(codec_)) {
    const uint32_t group = std::array{1u, 2u, 3u, 8u, 11u}[seed % 5];
    const EncodedLayer layer = EncodeLayer(codec_, shape, RandomRaw(shape, seed), kScales);
    const Queries queries(shape, group, ++seed);
    const Oracle oracle = OracleOf(codec_, layer, {.dtype = DType::kFp32, .scales = kScales});
    const std::vector<double> expected = oracle.Attention(queries.query);
    for (const SimdLevel level : AvailableSimdLevels()) {
      const AtLevel limit(level);
      const Partial found = Attend(codec_, layer, queries.query);
      EXPECT_LE(RelativeDistance(found.Attention(), expected), BoundFor(codec_))
          << Describe(shape, group) << " seed " << seed;
      for (uint32_t h = 0; h < queries.query.query_heads; ++h) {
        EXPECT_NEAR(LogSumExp(found.m[h], found.l[h]), oracle.LogSumExp(queries.query, h), BoundFor(codec_))
            << Describe(shape, group) << " seed " << seed;
      }
    }
  }
}

TEST_P(AttendTest, StaysNearAttentionOverDecodedFp16) {
  const BlockShape shape = ShapesOf(codec_).front();
  const Fp8Scales scales = kScales;
  const EncodedLayer layer = EncodeLayer(codec_, shape, RandomRaw(shape, kSeed), scales);
  const Queries queries(shape, 4, kSeed);
  const std::vector<double> expected =
      OracleOf(codec_, layer, {.dtype = DType::kFp16, .scales = scales}).Attention(queries.query);
  const AtLevel limit(SimdLevel::kPortable);
  EXPECT_LE(RelativeDistance(Attend(codec_, layer, queries.query).Attention(), expected), 1e-3);
}

TEST_P(AttendTest, MergedPartsOfASequenceAreItsAttention) {
  BlockShape shape = ShapesOf(codec_).front();
  const Queries queries(shape, 4, kSeed);
  const uint32_t heads = queries.query.query_heads;
  Partial all(heads, shape.v_dim);
  Oracle whole{
      .kv_heads = shape.kv_heads, .tokens = 0, .k_dim = shape.k_dim, .v_dim = shape.v_dim, .k = {}, .v = {}};
  std::vector<Oracle> oracles;
  std::vector<std::vector<float>> lse;
  for (uint32_t block = 0; block < 3; ++block) {
    const EncodedLayer layer = EncodeLayer(codec_, shape, RandomRaw(shape, kSeed + block), kScales);
    Partial part = Attend(codec_, layer, queries.query);
    MergeAttentionSimd(part.View(), heads, shape.v_dim, all.View());
    oracles.push_back(OracleOf(codec_, layer, {.dtype = DType::kFp32, .scales = kScales}));
    whole.tokens += shape.tokens;
    lse.emplace_back();
    for (uint32_t h = 0; h < heads; ++h) lse.back().push_back(LogSumExp(part.m[h], part.l[h]));
  }
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (const Oracle& oracle : oracles) {
      const size_t k_rows = size_t{shape.tokens} * shape.k_dim, v_rows = size_t{shape.tokens} * shape.v_dim;
      whole.k.insert(whole.k.end(), oracle.k.begin() + static_cast<ptrdiff_t>(head * k_rows),
                     oracle.k.begin() + static_cast<ptrdiff_t>((head + 1) * k_rows));
      whole.v.insert(whole.v.end(), oracle.v.begin() + static_cast<ptrdiff_t>(head * v_rows),
                     oracle.v.begin() + static_cast<ptrdiff_t>((head + 1) * v_rows));
    }
  }
  EXPECT_LE(RelativeDistance(all.Attention(), whole.Attention(queries.query)), BoundFor(codec_));
  for (uint32_t h = 0; h < heads; ++h) {
    float mass = 0;
    for (const std::vector<float>& block : lse)
      mass += AttentionMass(block[h], LogSumExp(all.m[h], all.l[h]));
    EXPECT_NEAR(mass, 1, 1e-5);
  }
}

TEST_P(AttendTest, AttendsToALayerThatIsStoredRaw) {
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    BlockShape shape{.layers = 1, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .tokens = 40, .dtype = dtype};
    const Bytes raw = RandomRaw(shape, kSeed);
    const Queries queries(shape, 2, kSeed);
    ConstLayerParts parts;
    parts.part[0] = raw;
    Partial found(queries.query.query_heads, shape.v_dim), expected(queries.query.query_heads, shape.v_dim);
    EXPECT_EQ(codec_.attend(shape, kPlaneRaw, parts, queries.query, found.View()), VForm::kPlain);
    AttendRawLayer(shape, raw, queries.query, expected.View());
    EXPECT_EQ(found.o, expected.o);
    EXPECT_EQ(found.m, expected.m);
  }
}

/// A layer of head dimension 64 and 40 tokens whose element `at` (K, then V) has the fp16 `bits`, stored raw,
/// attended to by two query heads a KV head.
Partial AttendWithElement(const Codec& codec, size_t at, uint16_t bits) {
  const BlockShape shape{.layers = 1, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .tokens = 40};
  Bytes raw = RandomRaw(shape, kSeed);
  Store16(&raw[2 * at], bits);
  ConstLayerParts parts;
  parts.part[0] = raw;
  const Queries queries(shape, 2, kSeed);
  Partial found(queries.query.query_heads, shape.v_dim);
  codec.attend(shape, kPlaneRaw, parts, queries.query, found.View());
  return found;
}

TEST_P(AttendTest, AScoreThatIsNoNumberMakesTheAttentionOfItsHeadsNone) {
  constexpr uint16_t kNan = 0x7e00;
  for (const SimdLevel level : AvailableSimdLevels()) {
    const AtLevel limit(level);
    for (const size_t token : {0, 17, 39}) {
      Partial found = AttendWithElement(codec_, (40 + token) * 64 + 5, kNan);  // K of head 1
      for (uint32_t h = 0; h < 4; ++h)
        EXPECT_EQ(std::isnan(found.l[h]), h >= 2) << h << " at " << SimdLevelName(level);
      Partial merged(4, 64);
      MergeAttentionSimd(found.View(), 4, 64, merged.View());
      EXPECT_TRUE(std::isnan(merged.l[2]));
      EXPECT_TRUE(std::isnan(AttentionMass(LogSumExp(found.m[2], found.l[2]), 1.0f)));
    }
  }
}

TEST_P(AttendTest, AnInfiniteScoreIsNoAttentionAndOneOfMinusInfinityNoWeight) {
  for (const SimdLevel level : AvailableSimdLevels()) {
    const AtLevel limit(level);
    const Partial up = AttendWithElement(codec_, 3 * 64 + 5, 0x7c00);
    const Partial down = AttendWithElement(codec_, 3 * 64 + 5, 0xfc00);
    for (uint32_t h = 0; h < 2; ++h) {
      // One of the two scores is +infinity, which depends on the sign of the query.
      EXPECT_NE(std::isnan(up.l[h]), std::isnan(down.l[h])) << h << " at " << SimdLevelName(level);
      const Partial& away = std::isnan(up.l[h]) ? down : up;
      EXPECT_TRUE(std::isfinite(away.m[h]) && away.l[h] > 0 && away.l[h] < 40);
    }
  }
}

TEST_P(AttendTest, AQueryThatIsNoNumberHasNoAttention) {
  const BlockShape shape = ShapesOf(codec_).front();
  const EncodedLayer layer = EncodeLayer(codec_, shape, RandomRaw(shape, kSeed), kScales);
  for (const float wrong : {NAN, INFINITY, -INFINITY, 3e38f}) {
    Queries queries(shape, 3, kSeed);
    for (uint32_t c = 0; c < shape.k_dim; ++c) queries.values[shape.k_dim + c] = c % 2 == 0 ? wrong : -wrong;
    queries.query.scale = 1;
    for (const SimdLevel level : AvailableSimdLevels()) {
      const AtLevel limit(level);
      const Partial found = Attend(codec_, layer, queries.query);
      EXPECT_FALSE(std::isfinite(found.Attention()[shape.v_dim])) << wrong << " at " << SimdLevelName(level);
      EXPECT_TRUE(std::isfinite(found.Attention()[0])) << wrong << " at " << SimdLevelName(level);
    }
  }
}

TEST_P(AttendTest, ArbitraryBytesAreReadInBoundsAndOnlyThere) {
  std::mt19937 random(kSeed);
  for (const BlockShape& shape : ShapesOf(codec_)) {
    for (const GuardedEnd end : {GuardedEnd::kFront, GuardedEnd::kBack}) {
      std::vector<GuardedMemory> memory;
      ConstLayerParts parts;
      const uint8_t planes = EncodedPlanes(codec_, shape);
      for (int region = 0; region < kRegions; ++region) {
        memory.emplace_back(PartBytes(codec_.id, shape, planes, static_cast<Region>(region)), end);
        for (std::byte& byte : memory.back().span()) byte = static_cast<std::byte>(random());
        parts.part[region] = memory.back().span();
      }
      const uint32_t group = 1 + random() % 9;
      const Queries queries(shape, group, kSeed);
      GuardedMemory q(std::as_bytes(std::span(queries.values)), end);
      GuardedMemory o(sizeof(float) * queries.query.query_heads * shape.v_dim, end);
      GuardedMemory m(sizeof(float) * queries.query.query_heads, end);
      GuardedMemory l(sizeof(float) * queries.query.query_heads, end);
      AttentionQuery query = queries.query;
      query.q = reinterpret_cast<const float*>(q.span().data());
      for (const SimdLevel level : AvailableSimdLevels()) {
        const AtLevel limit(level);
        codec_.attend(shape, planes, parts, query,
                      {.o = reinterpret_cast<float*>(o.span().data()),
                       .m = reinterpret_cast<float*>(m.span().data()),
                       .l = reinterpret_cast<float*>(l.span().data())});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllCodecs, AttendTest, testing::ValuesIn(AllCodecs()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(MergeAttention, NothingIsTheNeutralElement) {
  Partial nothing(1, 64), also_nothing(1, 64), some(1, 64);
  some.o.assign(64, 3.0f);
  some.m[0] = -5;
  some.l[0] = 2;
  MergeAttentionHead(also_nothing.View(), 0, 64, nothing.View());
  EXPECT_EQ(nothing.m[0], -INFINITY);
  EXPECT_EQ(nothing.l[0], 0);
  MergeAttentionHead(some.View(), 0, 64, nothing.View());
  EXPECT_EQ(nothing.o, some.o);
  MergeAttentionHead(also_nothing.View(), 0, 64, some.View());
  EXPECT_EQ(nothing.o, some.o);
  EXPECT_EQ(some.l[0], 2);
}

}  // namespace
}  // namespace kvtier
