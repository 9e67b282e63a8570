#include "tests/quality/attend_score.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/numerics.h"
#include "tests/quality/kvtier_methods.h"
#include "tests/quality/score.h"

namespace kvtier::quality {
namespace {

constexpr uint16_t kBlockTokens = 64;
constexpr uint8_t kBoost = 32;  // half of the fixtures' channels

/// Sums of a softmax in double precision, one query head.
struct Sums {
  double m = -INFINITY, l = 0;
  std::vector<double> o;

  void Add(double part_m, double part_l, const float* part_o) {
    const double all = std::max(m, part_m), keep = std::exp(m - all), take = std::exp(part_m - all);
    l = l * keep + part_l * take;
    for (size_t c = 0; c < o.size(); ++c) o[c] = o[c] * keep + part_o[c] * take;
    m = all;
  }
};

/// One token that is not in a block, by its own dot product.
void AddToken(const float* q, const LayerKv& kv, uint32_t kv_head, uint32_t token, double scale, Sums& sums) {
  const size_t row = (size_t{kv_head} * kv.tokens + token) * kv.dim;
  double score = 0;
  for (uint32_t c = 0; c < kv.dim; ++c) score += scale * q[c] * kv.k[row + c];
  sums.Add(score, 1, &kv.v[row]);
}

/// All heads' queries of one token, [query_heads][dim].
std::vector<float> QueriesOf(const Fixture& fixture, uint32_t layer, uint32_t query) {
  const uint32_t queries = fixture.tokens() - fixture.first_query_token();
  std::vector<float> q;
  for (uint32_t head = 0; head < fixture.query_heads(); ++head) {
    const uint16_t* row = fixture.Q(layer) + (size_t{head} * queries + query) * fixture.dim();
    std::transform(row, row + fixture.dim(), std::back_inserter(q), Fp32FromFp16);
  }
  return q;
}

/// Merges a block's attention into every head's sums.
void AddBlock(const ImageView& image, uint32_t layer, const std::vector<float>& q, double scale,
              std::vector<Sums>& sums) {
  const BlockShape& shape = image.identity.shape;
  std::vector<float> o(sums.size() * shape.v_dim), m(sums.size()), l(sums.size());
  const AttentionQuery query = {
      .q = q.data(), .query_heads = static_cast<uint32_t>(sums.size()), .scale = static_cast<float>(scale)};
  const auto i = static_cast<uint16_t>(layer);
  const VForm form = image.codec->attend(shape, image.table[i].planes, image.Parts(i), query,
                                         {.o = o.data(), .m = m.data(), .l = l.data()});
  for (size_t head = 0; head < sums.size(); ++head) {
    float* row = &o[head * shape.v_dim];
    if (form == VForm::kRotated) RotateV(row, shape.v_dim);
    sums[head].Add(m[head], l[head], row);
  }
}

/// [query_heads][queries][dim], as AttentionOutputs.
std::vector<double> AttendedOutputs(const std::vector<OwnedImage>& blocks, const Fixture& fixture,
                                    uint32_t layer, uint32_t query_step) {
  const LayerKv newest = OriginalLayer(fixture, layer);
  const uint32_t heads = fixture.query_heads(), dim = fixture.dim(), first = fixture.first_query_token();
  const uint32_t all = fixture.tokens() - first, queries = (all + query_step - 1) / query_step;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  std::vector<double> outputs(size_t{heads} * queries * dim);
  for (uint32_t i = 0; i < queries; ++i) {
    const std::vector<float> q = QueriesOf(fixture, layer, i * query_step);
    std::vector<Sums> sums(heads);
    for (Sums& head : sums) head.o.resize(dim);
    for (const OwnedImage& block : blocks) AddBlock(*ParseImage(block.bytes), layer, q, scale, sums);
    for (uint32_t head = 0; head < heads; ++head) {
      for (uint32_t token = first; token <= first + i * query_step; ++token)
        AddToken(&q[head * dim], newest, head / (heads / newest.heads), token, scale, sums[head]);
      for (uint32_t c = 0; c < dim; ++c)
        outputs[(size_t{head} * queries + i) * dim + c] = sums[head].o[c] / sums[head].l;
    }
  }
  return outputs;
}

double Distance(const std::vector<double>& right, const std::vector<double>& a,
                const std::vector<double>& b) {
  double square = 0, distance = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    square += right[i] * right[i];
    distance += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::sqrt(distance / square);
}

}  // namespace

AttendLayerScore AttendScore::Overall() const {
  AttendLayerScore sum;
  const double n = static_cast<double>(layers.size());
  for (const AttendLayerScore& layer : layers) {
    sum.decoded += layer.decoded * layer.decoded / n;
    sum.attended += layer.attended * layer.attended / n;
    sum.added += layer.added * layer.added / n;
  }
  return {
      .decoded = std::sqrt(sum.decoded), .attended = std::sqrt(sum.attended), .added = std::sqrt(sum.added)};
}

Result<AttendScore> ScoreAttend(const Codec& codec, const Fixture& fixture, uint32_t query_step) {
  const Form form = {.codec = &codec, .tokens = kBlockTokens, .nb = kBoost, .by = nullptr};
  std::vector<OwnedImage> blocks;
  std::vector<LayerKv> decoded;
  for (uint32_t layer = 0; layer < fixture.layers(); ++layer)
    decoded.push_back(OriginalLayer(fixture, layer));
  for (uint32_t token = 0; token + kBlockTokens <= fixture.first_query_token(); token += kBlockTokens) {
    KVTIER_ASSIGN(OwnedImage owned, EncodeFixtureBlock(form, fixture, token));
    KVTIER_ASSIGN(const ImageView image, ParseImage(owned.bytes));
    DecodeInto(image, token, decoded);
    blocks.push_back(std::move(owned));
  }
  AttendScore score = {.codec = std::string(codec.name), .layers = {}};
  for (uint32_t layer = 0; layer < fixture.layers(); ++layer) {
    const auto right = AttentionOutputs(fixture, layer, OriginalLayer(fixture, layer), query_step);
    const auto on_decoded = AttentionOutputs(fixture, layer, decoded[layer], query_step);
    const auto on_codes = AttendedOutputs(blocks, fixture, layer, query_step);
    score.layers.push_back({.decoded = RelativeError(right, on_decoded),
                            .attended = RelativeError(right, on_codes),
                            .added = Distance(right, on_decoded, on_codes)});
  }
  return score;
}

}  // namespace kvtier::quality
