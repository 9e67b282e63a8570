#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/quality/cache.h"

namespace kvtier::quality {

/// Errors are relative: sqrt(sum (x - x^)^2 / sum x^2).
struct LayerScore {
  double k_error = 0, v_error = 0;
  double attention_error = 0;       ///< of the attention output, all query heads and queries
  double attention_error_head = 0;  ///< of the worst query head
  double cosine = 0;                ///< of the output of a head and query with the right one, mean
  double cosine_min = 0;
};

struct Score {
  std::string method;
  double bits_per_element = 0;
  std::vector<LayerScore> layers;

  /// Root of the mean square over the layers.
  double KError() const;
  double VError() const;
  double AttentionError() const;
  /// 1 - the mean cosine of outputs with the right ones.
  double CosineDistance() const;
};

/// Attention outputs of one layer's queries over all tokens that they see, [query_heads][queries][dim], in
/// double precision. `query_step`: every how many queries.
std::vector<double> AttentionOutputs(const Fixture& fixture, uint32_t layer, const LayerKv& kv,
                                     uint32_t query_step);
double RelativeError(const std::vector<double>& right, const std::vector<double>& tried);

/// Knows the right outputs of a fixture. Threads: any, once made.
class Judge {
 public:
  Judge(const Fixture& fixture, uint32_t query_step);
  Result<Score> Try(const Method& method) const;

 private:
  LayerScore ScoreOf(uint32_t layer, const LayerKv& kv) const;

  const Fixture& fixture_;
  uint32_t query_step_;
  std::vector<LayerKv> originals_;
  std::vector<std::vector<double>> outputs_;
};

}  // namespace kvtier::quality
