#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "codecs/codec.h"
#include "kernels/attention.h"
#include "tests/codecs/encoded_layer.h"

namespace kvtier {

/// A result of attention that owns its arrays.
struct Partial {
  Partial(uint32_t query_heads, uint32_t v_dim)
      : o(size_t{query_heads} * v_dim), m(query_heads, -INFINITY), l(query_heads), dim(v_dim) {}
  AttentionPartial View() { return {.o = o.data(), .m = m.data(), .l = l.data()}; }
  void ToPlain(VForm form) {
    for (size_t at = 0; form == VForm::kRotated && at < o.size(); at += dim) RotateV(o.data() + at, dim);
  }
  /// o / l, plain.
  std::vector<double> Attention() const {
    std::vector<double> result(o.size());
    for (size_t i = 0; i < o.size(); ++i) result[i] = double{o[i]} / l[i / dim];
    return result;
  }

  std::vector<float> o, m, l;
  uint32_t dim;
};

/// K and V of some tokens in double precision, [head][token][channel], and attention over them.
struct Oracle {
  uint32_t kv_heads = 0, tokens = 0, k_dim = 0, v_dim = 0;
  std::vector<double> k, v;

  std::vector<double> Scores(const AttentionQuery& query, uint32_t query_head) const {
    const uint32_t head = query_head / (query.query_heads / kv_heads);
    std::vector<double> scores(tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t c = 0; c < k_dim; ++c)
        scores[t] +=
            double{query.q[size_t{query_head} * k_dim + c]} * k[(size_t{head} * tokens + t) * k_dim + c];
      scores[t] *= query.scale;
    }
    return scores;
  }
  double LogSumExp(const AttentionQuery& query, uint32_t query_head) const {
    double sum = 0;
    const std::vector<double> scores = Scores(query, query_head);
    const double m = *std::ranges::max_element(scores);
    for (const double score : scores) sum += std::exp(score - m);
    return m + std::log(sum);
  }
  /// [query_heads][v_dim]
  std::vector<double> Attention(const AttentionQuery& query) const {
    std::vector<double> out(size_t{query.query_heads} * v_dim);
    for (uint32_t h = 0; h < query.query_heads; ++h) {
      const uint32_t head = h / (query.query_heads / kv_heads);
      const std::vector<double> scores = Scores(query, h);
      const double lse = LogSumExp(query, h);
      for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t c = 0; c < v_dim; ++c)
          out[size_t{h} * v_dim + c] +=
              std::exp(scores[t] - lse) * v[(size_t{head} * tokens + t) * v_dim + c];
    }
    return out;
  }
};

/// What a layer decodes to: rounded to FP16 or not at all (FP32).
inline Oracle OracleOf(const Codec& codec, const EncodedLayer& layer, const Destination& destination) {
  const BlockShape& s = layer.shape;
  Oracle oracle{
      .kv_heads = s.kv_heads, .tokens = s.tokens, .k_dim = s.k_dim, .v_dim = s.v_dim, .k = {}, .v = {}};
  const Bytes decoded = DecodeLayer(codec, layer, destination);
  const size_t k_elements = size_t{s.kv_heads} * s.tokens * s.k_dim;
  const size_t elements = k_elements + size_t{s.kv_heads} * s.tokens * s.v_dim;
  for (size_t i = 0; i < elements; ++i) {
    float value;
    if (destination.dtype == DType::kFp32) {
      memcpy(&value, decoded.data() + 4 * i, 4);
    } else {
      value = Fp32FromFp16(Load16(decoded.data() + 2 * i));
    }
    (i < k_elements ? oracle.k : oracle.v).push_back(value);
  }
  return oracle;
}

/// sqrt(sum (x - y)^2 / sum y^2)
inline double RelativeDistance(const std::vector<double>& x, const std::vector<double>& y) {
  double distance = 0, square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    distance += (x[i] - y[i]) * (x[i] - y[i]);
    square += y[i] * y[i];
  }
  return std::sqrt(distance / square);
}
inline double Cosine(const std::vector<double>& x, const std::vector<double>& y) {
  double dot = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    dot += x[i] * y[i];
    xx += x[i] * x[i];
    yy += y[i] * y[i];
  }
  return dot / std::sqrt(xx * yy);
}

/// Attention over a layer by its codec, with o made plain.
inline Partial Attend(const Codec& codec, const EncodedLayer& layer, const AttentionQuery& query) {
  Partial partial(query.query_heads, layer.shape.v_dim);
  partial.ToPlain(codec.attend(layer.shape, layer.planes, layer.View(), query, partial.View()));
  return partial;
}

inline std::vector<float> RandomQueries(uint32_t seed, size_t elements, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> q(elements);
  for (float& x : q) x = normal(random);
  return q;
}

}  // namespace kvtier
