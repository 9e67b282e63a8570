#include "deploy/quickstart/real_kv.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "kernels/numerics.h"

namespace kvtier::quickstart {
namespace {

Result<std::vector<uint16_t>> ReadValues(const std::string& path, size_t count) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::kNotFound, path);
  std::vector<uint16_t> values(count);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * 2));
  if (!file || file.peek() != std::ifstream::traits_type::eof()) {
    return Status(Code::kDataLoss, path + " is not " + std::to_string(count * 2) + " bytes long");
  }
  return values;
}

}  // namespace

Result<RealKv> LoadRealKv(const std::string& folder, const std::string& name, uint32_t kv_heads,
                          uint32_t query_heads) {
  RealKv model{
      .name = name, .kv_heads = kv_heads, .query_heads = query_heads, .tokens = {}, .kv = {}, .q = {}};
  const std::string prefix = folder + "/" + name;
  KVTIER_ASSIGN(model.kv, ReadValues(prefix + ".kv.f16", 2 * RealKv::kLayers * model.plane_values()));
  const size_t queries = size_t{RealKv::kLayers} * query_heads * RealKv::kQueries * RealKv::kDim;
  KVTIER_ASSIGN(model.q, ReadValues(prefix + ".q.f16", queries));
  std::ifstream tokens(prefix + ".tokens.txt");
  for (int32_t token = 0; tokens >> token;) model.tokens.push_back(token);
  if (model.tokens.size() != RealKv::kTokens) return Status(Code::kDataLoss, prefix + ".tokens.txt");
  return model;
}

double ErrorSums::relative() const {
  return square > 0 ? std::sqrt(difference / square) : 0;
}

void AddFp16(const uint16_t* expected, const uint16_t* got, uint64_t n, ErrorSums* sums) {
  for (uint64_t i = 0; i < n; ++i) {
    const double x = Fp32FromFp16(expected[i]);
    const double error = x - Fp32FromFp16(got[i]);
    sums->square += x * x;
    sums->difference += error * error;
  }
}

namespace {

constexpr uint32_t kDim = RealKv::kDim;

std::vector<float> Widened(const std::vector<uint16_t>& halves) {
  std::vector<float> wide(halves.size());
  std::transform(halves.begin(), halves.end(), wide.begin(), Fp32FromFp16);
  return wide;
}

/// In eight sums side by side, which a processor adds at the same time.
double Dot(const float* a, const float* b) {
  double sums[8] = {};
  for (uint32_t d = 0; d < kDim; d += 8) {
    for (uint32_t i = 0; i < 8; ++i) sums[i] += double{a[d + i]} * b[d + i];
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// out [channel], for one query over `tokens` keys and values, all [token][channel].
void AttendOne(const float* query, const float* keys, const float* values, uint32_t tokens, double* out) {
  std::vector<double> weights(tokens);
  double largest = -INFINITY;
  for (uint32_t t = 0; t < tokens; ++t) {
    weights[t] = Dot(query, keys + t * kDim) / std::sqrt(kDim);
    largest = std::max(largest, weights[t]);
  }
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  std::fill_n(out, kDim, 0.0);
  for (uint32_t t = 0; t < tokens; ++t) {
    const double weight = weights[t] / total;
    for (uint32_t d = 0; d < kDim; ++d) out[d] += weight * values[t * kDim + d];
  }
}

}  // namespace

std::vector<double> AttentionOutput(const RealKv& model, const std::vector<uint16_t>& kv) {
  const std::vector<float> queries = Widened(model.q);
  const std::vector<float> wide = Widened(kv);
  std::vector<double> out(queries.size());
  const uint32_t heads_per_kv_head = model.query_heads / model.kv_heads;
  uint64_t at = 0;
  for (uint32_t layer = 0; layer < RealKv::kLayers; ++layer) {
    for (uint32_t head = 0; head < model.query_heads; ++head) {
      const uint32_t kv_head = head / heads_per_kv_head;
      for (uint32_t query = 0; query < RealKv::kQueries; ++query, at += kDim) {
        const uint32_t tokens = RealKv::kTokens - RealKv::kQueries + query + 1;
        AttendOne(&queries[at], &wide[model.Row(layer, 0, kv_head, 0)],
                  &wide[model.Row(layer, 1, kv_head, 0)], tokens, &out[at]);
      }
    }
  }
  return out;
}

}  // namespace kvtier::quickstart
