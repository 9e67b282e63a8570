// The hook on a flash attention node of llama.cpp as it would find it in a graph; needs no model.
#include "tests/eval/attend_hook.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "client/engines/llamacpp/seq_state.h"
#include "kernels/numerics.h"

namespace kvtier::eval {
namespace {

// A block and a half of context; more new tokens than one raw block holds.
constexpr uint32_t kContext = 192, kQueries = 140, kCells = 384;
constexpr uint32_t kLayers = 2, kKvHeads = 2, kQueryHeads = 6, kDim = 64;
constexpr llamacpp::HeadShape kHeads = {.kv_heads = kKvHeads, .head_dim = kDim};

void FillRandom(ggml_tensor& tensor, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < ggml_nelements(&tensor); ++i) {
    if (tensor.type == GGML_TYPE_F32)
      static_cast<float*>(tensor.data)[i] = normal(rng);
    else
      static_cast<uint16_t*>(tensor.data)[i] = Fp16FromFp32(normal(rng));
  }
}

/// The attention of one layer with a cache [cells][kv_heads][dim], of which the model's context is the front,
/// and a batch behind it.
struct Layer {
  explicit Layer(uint32_t number) {
    ggml_context* const context = memory.get();
    cache_k = ggml_new_tensor_3d(context, GGML_TYPE_F16, kDim, kKvHeads, kCells);
    cache_v = ggml_new_tensor_3d(context, GGML_TYPE_F16, kDim, kKvHeads, kCells);
    rope = ggml_new_tensor_3d(context, GGML_TYPE_F32, kDim, kQueryHeads, kQueries);
    mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, kCells, kQueries);
    FillRandom(*cache_k, number * 3), FillRandom(*cache_v, number * 3 + 1), FillRandom(*rope, number * 3 + 2);
    for (uint32_t query = 0; query < kQueries; ++query)
      for (uint32_t cell = 0; cell < kCells; ++cell)
        Mask(query, cell) = Fp16FromFp32(cell <= kContext + query ? 0.0f : -INFINITY);
    ggml_format_name(cache_k, "cache_k_l%u", number);
    out = ggml_flash_attn_ext(context, ggml_permute(context, rope, 0, 2, 1, 3),
                              ggml_permute(context, cache_k, 0, 2, 1, 3),
                              ggml_permute(context, cache_v, 0, 2, 1, 3), mask, kScale, 0, 0);
  }
  uint16_t& Mask(uint32_t query, uint32_t cell) {
    return static_cast<uint16_t*>(mask->data)[size_t{query} * kCells + cell];
  }
  static double Number(const ggml_tensor& cache, uint32_t cell, uint32_t head, uint32_t c) {
    return Fp32FromFp16(
        static_cast<const uint16_t*>(cache.data)[(size_t{cell} * kKvHeads + head) * kDim + c]);
  }
  /// [dim] in double precision.
  std::vector<double> Right(uint32_t query, uint32_t head) const {
    const float* const q =
        static_cast<const float*>(rope->data) + (size_t{query} * kQueryHeads + head) * kDim;
    const uint32_t kv_head = head / (kQueryHeads / kKvHeads);
    std::vector<double> o(kDim);
    double l = 0;
    for (uint32_t cell = 0; cell <= kContext + query; ++cell) {
      double score = 0;
      for (uint32_t c = 0; c < kDim; ++c) score += q[c] * Number(*cache_k, cell, kv_head, c);
      const double p = std::exp(score * kScale);
      l += p;
      for (uint32_t c = 0; c < kDim; ++c) o[c] += p * Number(*cache_v, cell, kv_head, c);
    }
    for (double& value : o) value /= l;
    return o;
  }

  static constexpr float kScale = 0.125f;
  std::unique_ptr<ggml_context, decltype(&ggml_free)> memory{
      ggml_init({.mem_size = 8u << 20, .mem_buffer = nullptr, .no_alloc = false}), ggml_free};
  ggml_tensor *cache_k, *cache_v, *rope, *mask, *out;
};

class AttendHookTest : public ::testing::Test {
 protected:
  AttendHookTest() {
    for (uint32_t i = 0; i < kLayers; ++i) layers_.push_back(std::make_unique<Layer>(i));
  }

  /// The caches' fronts through a method, which are forgotten then.
  std::vector<StoredBlock> TakeContext(const std::string& name) {
    llamacpp::SeqStateBuffer state({.layers = kLayers, .row_bytes = kKvHeads * kDim * 2}, 0, kContext);
    for (uint32_t i = 0; i < kLayers; ++i) {
      for (const auto& [rows, cache] :
           {std::pair(state.K(i), layers_[i]->cache_k), {state.V(i), layers_[i]->cache_v}})
        memcpy(rows, cache->data, kContext * cache->nb[2]);
    }
    Result<ContextKv> context = ContextKv::Make({state.bytes().begin(), state.bytes().end()}, kHeads);
    const std::vector<Method> methods = AllMethods();
    const auto method =
        std::find_if(methods.begin(), methods.end(), [&](const Method& m) { return m.name == name; });
    Result<std::vector<StoredBlock>> blocks = method->encode(context.value());
    return std::move(blocks.value());
  }
  void ForgetContext() {
    for (const auto& layer : layers_)
      for (ggml_tensor* const cache : {layer->cache_k, layer->cache_v})
        memset(cache->data, 0x7f, kContext * cache->nb[2]);  // not numbers
  }
  double Error(const std::vector<std::vector<double>>& right) const {
    double square = 0, distance = 0;
    size_t at = 0;
    for (const auto& layer : layers_) {
      const float* out = static_cast<const float*>(layer->out->data);
      for (uint32_t row = 0; row < kQueries * kQueryHeads; ++row, ++at) {
        for (uint32_t c = 0; c < kDim; ++c, ++out) {
          square += right[at][c] * right[at][c];
          distance += (right[at][c] - *out) * (right[at][c] - *out);
        }
      }
    }
    return std::sqrt(distance / square);
  }
  std::vector<std::vector<double>> Right() const {
    std::vector<std::vector<double>> right;
    for (const auto& layer : layers_)
      for (uint32_t query = 0; query < kQueries; ++query)
        for (uint32_t head = 0; head < kQueryHeads; ++head) right.push_back(layer->Right(query, head));
    return right;
  }
  /// As llama.cpp calls it.
  void RunGraph() {
    for (const auto& layer : layers_) {
      EXPECT_FALSE(AttendHook::OnNode(layer->rope, true, &hook_));
      ASSERT_TRUE(AttendHook::OnNode(layer->out, true, &hook_));
      EXPECT_TRUE(AttendHook::OnNode(layer->out, false, &hook_));
    }
  }

  std::vector<std::unique_ptr<Layer>> layers_;
  AttendHook hook_;
};

TEST_F(AttendHookTest, RawBlocksGiveTheAttentionOverTheWholeCache) {
  const std::vector<std::vector<double>> right = Right();
  const std::vector<StoredBlock> blocks = TakeContext(kExactMethod);
  ForgetContext();
  hook_.Start(blocks);
  RunGraph();
  ASSERT_TRUE(hook_.Finish().ok());
  EXPECT_LT(Error(right), 1e-6);
}

TEST_F(AttendHookTest, BlocksInOtherPrecisionsGiveTheirs) {
  const std::vector<std::vector<double>> right = Right();
  const std::vector<StoredBlock> exact = TakeContext("kv4p"), coarse = TakeContext("kv2p");
  ForgetContext();
  hook_.Start(exact);
  RunGraph();
  ASSERT_TRUE(hook_.Finish().ok());
  const double error = Error(right);
  EXPECT_GT(error, 0.01);
  EXPECT_LT(error, 0.2);
  hook_.Start(coarse);
  RunGraph();
  ASSERT_TRUE(hook_.Finish().ok());
  EXPECT_GT(Error(right), error);
}

TEST_F(AttendHookTest, WhatItCannotReplaceIsAnError) {
  const std::vector<StoredBlock> blocks = TakeContext(kExactMethod);
  const auto run = [&] {
    hook_.Start(blocks);
    RunGraph();
    return hook_.Finish().code();
  };
  EXPECT_EQ(run(), Code::kOk);
  uint16_t& seen = layers_[1]->Mask(7, 3);
  seen = Fp16FromFp32(-INFINITY);
  EXPECT_EQ(run(), Code::kInternal) << "a token of the context that a query does not see";
  seen = 0;
  layers_[1]->out->op_params[2] = layers_[1]->out->op_params[0];
  EXPECT_EQ(run(), Code::kUnimplemented) << "scores that are capped";
  layers_[1]->out->op_params[2] = 0;
  EXPECT_EQ(run(), Code::kOk);
  layers_.pop_back();
  EXPECT_EQ(run(), Code::kInternal) << "a layer without attention";
}

TEST_F(AttendHookTest, LeavesEverythingAloneUnlessStarted) {
  for (const auto& layer : layers_) {
    EXPECT_FALSE(AttendHook::OnNode(layer->out, true, &hook_));
  }
}

}  // namespace
}  // namespace kvtier::eval
