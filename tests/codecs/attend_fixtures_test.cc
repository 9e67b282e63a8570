// Attention on encoded blocks of real K and V, asked by the real queries that came after them.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "kernels/simd/attend_simd.h"
#include "kernels/simd/dispatch.h"
#include "tests/codecs/attention_oracle.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"

namespace kvtier {
namespace {

constexpr uint32_t kContext = 448;   // tokens 0 .. 447: before the first query
constexpr uint32_t kQueryStep = 13;  // a few of the queries, for speed

/// One layer of a fixture as blocks of 128 tokens, the last one of 64.
struct Context {
  Context(const Fixture& fixture, uint32_t layer, const Codec& codec) : codec(codec) {
    for (uint32_t first = 0; first < kContext; first += 128) {
      BlockShape shape = fixture.Shape(static_cast<uint16_t>(std::min(128u, kContext - first)),
                                       first == 0 ? 1 : 0, static_cast<uint8_t>(fixture.dim() / 8 * 4));
      shape.layers = 1;
      if (codec.precision >= Precision::kBits8) shape.nb = 0;
      if (codec.precision == Precision::kBits16) shape.nraw = 0;
      const Bytes block = fixture.RawBlock(first, shape.tokens);
      const auto start = block.begin() + static_cast<ptrdiff_t>(layer * RawLayerBytes(shape));
      blocks.push_back(
          EncodeLayer(codec, shape, Bytes(start, start + static_cast<ptrdiff_t>(RawLayerBytes(shape)))));
    }
  }
  std::vector<double> Attend(const AttentionQuery& query) const {
    const uint32_t v_dim = blocks[0].shape.v_dim;
    Partial all(query.query_heads, v_dim);
    for (const EncodedLayer& block : blocks) {
      Partial part = kvtier::Attend(codec, block, query);
      MergeAttentionSimd(part.View(), query.query_heads, v_dim, all.View());
    }
    return all.Attention();
  }
  /// The blocks side by side, as they decode.
  Oracle Decoded(DType dtype) const {
    const BlockShape& s = blocks[0].shape;
    Oracle all{
        .kv_heads = s.kv_heads, .tokens = kContext, .k_dim = s.k_dim, .v_dim = s.v_dim, .k = {}, .v = {}};
    std::vector<Oracle> each;
    for (const EncodedLayer& block : blocks) each.push_back(OracleOf(codec, block, {.dtype = dtype}));
    for (uint32_t head = 0; head < s.kv_heads; ++head) {
      for (const Oracle& block : each) {
        const auto append = [&](const std::vector<double>& from, uint32_t dim, std::vector<double>& to) {
          const auto start = from.begin() + static_cast<ptrdiff_t>(size_t{head} * block.tokens * dim);
          to.insert(to.end(), start, start + static_cast<ptrdiff_t>(size_t{block.tokens} * dim));
        };
        append(block.k, s.k_dim, all.k);
        append(block.v, s.v_dim, all.v);
      }
    }
    return all;
  }

  const Codec& codec;
  std::vector<EncodedLayer> blocks;
};

std::vector<float> QueriesOf(const Fixture& fixture, uint32_t layer, uint32_t token) {
  const uint32_t tokens = fixture.tokens() - fixture.first_query_token();
  std::vector<float> q;
  for (uint32_t head = 0; head < fixture.query_heads(); ++head)
    for (uint32_t c = 0; c < fixture.dim(); ++c)
      q.push_back(Fp32FromFp16(fixture.Q(layer)[(size_t{head} * tokens + token) * fixture.dim() + c]));
  return q;
}

/// Outputs of all queries, one after the other.
struct Outputs {
  std::vector<double> original;  ///< over the FP16 that was encoded
  std::vector<double> decoded;   ///< over what the codec decodes to, unrounded
  std::vector<double> fp16;      ///< over decoded FP16
  std::map<SimdLevel, std::vector<double>> attended;
};
Outputs AttendEveryWay(const Fixture& fixture, uint32_t layer, const Codec& codec) {
  const Context context(fixture, layer, codec), original(fixture, layer, *FindCodec(CodecId::kRaw16));
  const Oracle oracle = original.Decoded(DType::kFp32), decoded = context.Decoded(DType::kFp32),
               fp16 = context.Decoded(DType::kFp16);
  Outputs outputs;
  for (uint32_t token = 0; token < fixture.tokens() - fixture.first_query_token(); token += kQueryStep) {
    const std::vector<float> q = QueriesOf(fixture, layer, token);
    const AttentionQuery query{.q = q.data(),
                               .query_heads = fixture.query_heads(),
                               .scale = 1 / std::sqrt(static_cast<float>(fixture.dim()))};
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(outputs.original, oracle.Attention(query));
    append(outputs.decoded, decoded.Attention(query));
    append(outputs.fp16, fp16.Attention(query));
    for (const SimdLevel level : AvailableSimdLevels()) {
      const SimdLevel before = CurrentSimdLevel();
      LimitSimd(level);
      append(outputs.attended[level], context.Attend(query));
      LimitSimd(before);
    }
  }
  return outputs;
}

struct Case {
  const char* fixture;
  const Codec* codec;
};

class S11_AttendFixtures : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto fixture = Fixture::Load(std::string(TestDataFolder()) + "/" + GetParam().fixture);
    ASSERT_TRUE(fixture.ok()) << fixture.status().ToString();
    fixture_.emplace(std::move(*fixture));
  }
  std::optional<Fixture> fixture_;
};

/// Most that attention on stored bytes may differ from attention over the FP16 that was encoded, all queries
/// of a layer: relative error, and the least cosine. From what these fixtures give, and a few percent.
struct Limits {
  double error, cosine;
};
Limits LimitsOf(const Codec& codec) {
  switch (codec.precision) {
    case Precision::kBits16:
      return {3e-5, 1 - 1e-9};
    case Precision::kBits8:
      return {0.016, 0.99985};
    case Precision::kInt4:
      return {0.118, 0.993};
    case Precision::kK4V2:
      return {0.26, 0.968};
    default:
      return {0.28, 0.961};
  }
}

/// What one SIMD level gave, against everything that it can be held to.
void Judge(const Outputs& outputs, const Codec& codec, SimdLevel level, bool is_biased) {
  const std::vector<double>& attended = outputs.attended.at(level);
  const Limits limits = LimitsOf(codec);
  const double error = RelativeDistance(attended, outputs.original);
  EXPECT_LE(error, limits.error);
  EXPECT_GE(Cosine(attended, outputs.original), limits.cosine);
  // Integer dot products add little to what the codec costs.
  const bool is_integer = level != SimdLevel::kPortable && codec.precision < Precision::kBits8;
  EXPECT_LE(error, RelativeDistance(outputs.decoded, outputs.original) * 1.03 + 3e-5);
  EXPECT_LE(RelativeDistance(attended, outputs.decoded), is_integer ? 0.018 : is_biased ? 3e-5 : 1e-5);
  // The identities leave the decoder's last rounding out.
  if (!is_integer) {
    EXPECT_LE(RelativeDistance(attended, outputs.fp16), is_biased ? 1e-2 : 1e-3);
  }
}

TEST_P(S11_AttendFixtures, OutputsStayWithinTheErrorOfTheCodec) {
  const Codec& codec = *GetParam().codec;
  for (uint32_t layer = 0; layer < fixture_->layers(); ++layer) {
    const Outputs outputs = AttendEveryWay(*fixture_, layer, codec);
    // Large keys: scores of a hundred and more, whose fp32 sums cost more places.
    const bool is_biased = GetParam().fixture[0] == 'q' && layer < 2;
    for (const SimdLevel level : AvailableSimdLevels()) {
      SCOPED_TRACE("layer " + std::to_string(layer) + " at " + std::string(SimdLevelName(level)));
      Judge(outputs, codec, level, is_biased);
    }
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* fixture : {"smollm2-135m", "qwen2.5-coder-0.5b"})
    for (const CodecId id : {CodecId::kRaw16, CodecId::kKv8, CodecId::kKv4p, CodecId::kKv42, CodecId::kKv2p})
      cases.push_back({fixture, FindCodec(id)});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, S11_AttendFixtures, testing::ValuesIn(Cases()), [](const auto& info) {
  return std::string(info.param.codec->name) + (info.param.fixture[0] == 's' ? "_smollm2" : "_qwen");
});

}  // namespace
}  // namespace kvtier
