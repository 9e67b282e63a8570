#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::quickstart {

/// Real KV of four layers of a small model, and the queries of its last tokens (tests/data/README.md).
struct RealKv {
  static constexpr uint32_t kLayers = 4;
  static constexpr uint32_t kTokens = 512;
  static constexpr uint32_t kDim = 64;
  static constexpr uint32_t kQueries = 64;  ///< of tokens kTokens - kQueries and up

  std::string name;
  uint32_t kv_heads;
  uint32_t query_heads;
  std::vector<int32_t> tokens;
  std::vector<uint16_t> kv;  ///< fp16 [layer][K, V][kv head][token][channel]
  std::vector<uint16_t> q;   ///< fp16 [layer][query head][query][channel]

  uint64_t plane_values() const { return uint64_t{kv_heads} * kTokens * kDim; }
  /// First value of one (layer, K or V, head, token) of a buffer with the shape of `kv`.
  uint64_t Row(uint32_t layer, uint32_t k_or_v, uint32_t head, uint32_t token) const {
    return (uint64_t{layer} * 2 + k_or_v) * plane_values() + (uint64_t{head} * kTokens + token) * kDim;
  }
};

/// Errors: kNotFound for a missing file, kDataLoss for one of another size.
Result<RealKv> LoadRealKv(const std::string& folder, const std::string& name, uint32_t kv_heads,
                          uint32_t query_heads);

/// Sums of a relative error: sqrt(sum (x - y)^2 / sum x^2).
struct ErrorSums {
  double difference = 0;
  double square = 0;
  double relative() const;
};

/// Adds `n` fp16 values.
void AddFp16(const uint16_t* expected, const uint16_t* got, uint64_t n, ErrorSums* sums);

/// Attention output of the model's real queries, with the keys and values in `kv` (a buffer with the shape of
/// model.kv): softmax(q k / sqrt(dim)) v of each query over all tokens up to its own, [layer][query
/// head][query][channel].
std::vector<double> AttentionOutput(const RealKv& model, const std::vector<uint16_t>& kv);

}  // namespace kvtier::quickstart
