#include "tests/quality/score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/numerics.h"
#include "tiers/base/check.h"

namespace kvtier::quality {
namespace {

struct Difference {
  double square = 0, error = 0, dot = 0, other_square = 0;

  void Add(double right, double tried) {
    square += right * right;
    error += (right - tried) * (right - tried);
    dot += right * tried;
    other_square += tried * tried;
  }
  double Relative() const { return error == 0 ? 0 : std::sqrt(error / square); }
  double Cosine() const { return dot / std::sqrt(square * other_square); }
  void Join(const Difference& other) {
    square += other.square;
    error += other.error;
  }
};

template <typename T>
double RelativeErrorOf(const std::vector<T>& right, const std::vector<T>& tried) {
  KVTIER_CHECK(right.size() == tried.size());
  Difference difference;
  for (size_t i = 0; i < right.size(); ++i) difference.Add(right[i], tried[i]);
  return difference.Relative();
}

double RootMeanSquare(const std::vector<LayerScore>& layers, double LayerScore::*error) {
  double sum = 0;
  for (const LayerScore& layer : layers) sum += layer.*error * layer.*error;
  return std::sqrt(sum / static_cast<double>(layers.size()));
}

/// Keys of one head with the tokens innermost, so that one channel of all tokens is a run.
std::vector<double> ChannelsFirst(const LayerKv& kv, uint32_t head) {
  std::vector<double> channels(size_t{kv.dim} * kv.tokens);
  for (uint32_t t = 0; t < kv.tokens; ++t)
    for (uint32_t c = 0; c < kv.dim; ++c)
      channels[size_t{c} * kv.tokens + t] = kv.k[(size_t{head} * kv.tokens + t) * kv.dim + c];
  return channels;
}

/// softmax(q k^T / sqrt(dim)) v over tokens [0, seen).
void AttendOne(const uint16_t* q, const double* k_channels, const LayerKv& kv, uint32_t head, uint32_t seen,
               double* out) {
  std::vector<double> weight(seen);
  for (uint32_t c = 0; c < kv.dim; ++c) {
    const double factor = Fp32FromFp16(q[c]) / std::sqrt(static_cast<double>(kv.dim));
    for (uint32_t t = 0; t < seen; ++t) weight[t] += factor * k_channels[size_t{c} * kv.tokens + t];
  }
  const double largest = *std::ranges::max_element(weight);
  for (double& w : weight) w = std::exp(w - largest);
  const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
  std::fill(out, out + kv.dim, 0.0);
  for (uint32_t t = 0; t < seen; ++t) {
    const float* v = &kv.v[(size_t{head} * kv.tokens + t) * kv.dim];
    for (uint32_t c = 0; c < kv.dim; ++c) out[c] += weight[t] / sum * v[c];
  }
}

}  // namespace

double Score::KError() const {
  return RootMeanSquare(layers, &LayerScore::k_error);
}
double Score::VError() const {
  return RootMeanSquare(layers, &LayerScore::v_error);
}
double Score::AttentionError() const {
  return RootMeanSquare(layers, &LayerScore::attention_error);
}

double Score::CosineDistance() const {
  double sum = 0;
  for (const LayerScore& layer : layers) sum += std::max(1 - layer.cosine, 0.0);
  return sum / static_cast<double>(layers.size());
}

std::vector<double> AttentionOutputs(const Fixture& fixture, uint32_t layer, const LayerKv& kv,
                                     uint32_t query_step) {
  const uint32_t queries = fixture.tokens() - fixture.first_query_token();
  const uint32_t query_group = fixture.query_heads() / kv.heads;
  std::vector<double> outputs;
  for (uint32_t head = 0; head < kv.heads; ++head) {
    const std::vector<double> channels = ChannelsFirst(kv, head);
    for (uint32_t q_head = head * query_group; q_head < (head + 1) * query_group; ++q_head) {
      for (uint32_t i = 0; i < queries; i += query_step) {
        outputs.resize(outputs.size() + kv.dim);
        const uint16_t* q = fixture.Q(layer) + (size_t{q_head} * queries + i) * kv.dim;
        AttendOne(q, channels.data(), kv, head, fixture.first_query_token() + i + 1,
                  outputs.data() + outputs.size() - kv.dim);
      }
    }
  }
  return outputs;
}

double RelativeError(const std::vector<double>& right, const std::vector<double>& tried) {
  return RelativeErrorOf(right, tried);
}

Judge::Judge(const Fixture& fixture, uint32_t query_step) : fixture_(fixture), query_step_(query_step) {
  for (uint32_t layer = 0; layer < fixture.layers(); ++layer) {
    originals_.push_back(OriginalLayer(fixture, layer));
    outputs_.push_back(AttentionOutputs(fixture, layer, originals_.back(), query_step));
  }
}

LayerScore Judge::ScoreOf(uint32_t layer, const LayerKv& kv) const {
  const std::vector<double>& right = outputs_[layer];
  const std::vector<double> tried = AttentionOutputs(fixture_, layer, kv, query_step_);
  LayerScore score = {.k_error = RelativeErrorOf(originals_[layer].k, kv.k),
                      .v_error = RelativeErrorOf(originals_[layer].v, kv.v),
                      .attention_error = 0,
                      .attention_error_head = 0,
                      .cosine = 0,
                      .cosine_min = 1};
  const size_t outputs = right.size() / kv.dim, head_outputs = outputs / fixture_.query_heads();
  Difference all, head;
  for (size_t i = 0; i < outputs; ++i) {
    Difference one;
    for (size_t c = i * kv.dim; c < (i + 1) * kv.dim; ++c) one.Add(right[c], tried[c]);
    score.cosine += one.Cosine() / static_cast<double>(outputs);
    score.cosine_min = std::min(score.cosine_min, one.Cosine());
    head.Join(one);
    if ((i + 1) % head_outputs != 0) continue;
    score.attention_error_head = std::max(score.attention_error_head, head.Relative());
    all.Join(head);
    head = {};
  }
  score.attention_error = all.Relative();
  return score;
}

Result<Score> Judge::Try(const Method& method) const {
  KVTIER_ASSIGN(const Restored restored, method.restore(fixture_));
  Score score = {.method = method.name, .bits_per_element = 0, .layers = {}};
  size_t elements = 0;
  for (uint32_t layer = 0; layer < fixture_.layers(); ++layer) {
    score.layers.push_back(ScoreOf(layer, restored.layers[layer]));
    elements += 2 * restored.layers[layer].k.size();
  }
  score.bits_per_element = 8.0 * static_cast<double>(restored.bytes) / static_cast<double>(elements);
  return score;
}

}  // namespace kvtier::quality
