// Decode attention of llama.cpp's CPU backend (ggml_flash_attn_ext) beside ours: the same shape and context,
// in turns in one process on one thread.
#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/simd/dispatch.h"
#include "tests/bench/attention_work.h"
#include "tests/bench/interleave.h"
#include "tests/bench/machine.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kContextTokens = 32 << 10;
constexpr Shape kShape = kAttentionShape;
constexpr uint32_t kSeed = 2;

struct FreeContext {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using GgmlContext = std::unique_ptr<ggml_context, FreeContext>;

GgmlContext MakeContext(size_t bytes) {
  return GgmlContext(ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = false}));
}

/// llama.cpp keeps [token][head][channel]; [head][token][channel] is what its kernel would like best.
enum class Order { kTokensFirst, kHeadsFirst };

/// A KV cache of one type and the graph of one decode step over it.
class LlamaStep {
 public:
  LlamaStep(ggml_type type, Order order, const DecodeStep& step) {
    const size_t row_bytes = ggml_row_size(type, kShape.dim);
    context_ = MakeContext(2 * kContextTokens * kShape.heads * row_bytes + (size_t{64} << 20));
    ggml_tensor* k = Cache(type, order);
    ggml_tensor* v = Cache(type, order);
    ggml_tensor* q = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, kShape.dim, 1, step.heads());
    std::memcpy(q->data, step.queries().data(), ggml_nbytes(q));
    ggml_tensor* mask = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, kContextTokens, 1);
    std::memset(mask->data, 0, ggml_nbytes(mask));
    const float scale = 1 / std::sqrt(static_cast<float>(kShape.dim));
    result_ = ggml_flash_attn_ext(context_.get(), q, k, v, mask, scale, 0, 0);
    graph_ = ggml_new_graph(context_.get());
    ggml_build_forward_expand(graph_, result_);
    plan_ = ggml_graph_plan(graph_, 1, nullptr);
    work_.resize(plan_.work_size);
    plan_.work_data = work_.data();
  }

  void Attend() {
    if (ggml_graph_compute(graph_, &plan_) != GGML_STATUS_SUCCESS) std::abort();
  }

 private:
  /// Filled with the same token over and over; a view of [head][token][channel] whatever the order.
  ggml_tensor* Cache(ggml_type type, Order order) {
    const size_t head_bytes = ggml_row_size(type, kShape.dim), token_bytes = kShape.heads * head_bytes;
    ggml_tensor* cache =
        ggml_new_tensor_2d(context_.get(), type, int64_t{kShape.heads} * kShape.dim, kContextTokens);
    const size_t head_stride = order == Order::kTokensFirst ? head_bytes : kContextTokens * head_bytes;
    const size_t token_stride = order == Order::kTokensFirst ? token_bytes : head_bytes;
    std::vector<float> values(kShape.dim);
    std::mt19937 random(kSeed);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    for (uint32_t token = 0; token < kContextTokens; ++token)
      for (uint32_t head = 0; head < kShape.heads; ++head)
        ggml_quantize_chunk(type, values.data(),
                            static_cast<char*>(cache->data) + token * token_stride + head * head_stride, 0, 1,
                            kShape.dim, nullptr);
    return ggml_view_3d(context_.get(), cache, kShape.dim, kContextTokens, kShape.heads, token_stride,
                        head_stride, 0);
  }

  GgmlContext context_;
  ggml_tensor* result_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_{};
  std::vector<uint8_t> work_;
};

constexpr ggml_type kTypes[] = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};
/// Each type's alternatives, one an order.
constexpr size_t kOrdersOf[][2] = {{0, 1}, {2, 3}, {4, 5}};

void MeasureGroup(const std::vector<AttentionContext>& contexts, uint32_t group) {
  DecodeStep step(group);
  std::vector<std::unique_ptr<LlamaStep>> peers;
  std::vector<Alternative> alternatives;
  for (const ggml_type type : kTypes) {
    for (const Order order : {Order::kTokensFirst, Order::kHeadsFirst}) {
      peers.push_back(std::make_unique<LlamaStep>(type, order, step));
      const char* suffix = order == Order::kHeadsFirst ? " heads first" : "";
      alternatives.push_back({std::string("llama.cpp ") + ggml_type_name(type) + suffix,
                              [peer = peers.back().get()] { peer->Attend(); }});
    }
  }
  for (size_t i = 0; i < contexts.size(); ++i)
    alternatives.push_back({std::string(AllCodecs()[i]->name), [&, i] { step.Attend(contexts[i]); }});
  const Interleaved times =
      Interleaved::Run(alternatives, {.rounds = 11, .seconds = 3, .rounds_min = 2, .turn_seconds = 0});
  for (size_t i = 0; i < alternatives.size(); ++i)
    std::printf("%-26s %14u %16.0f %14.2f %14.2f %14.2f\n", alternatives[i].name.c_str(), group,
                kContextTokens / times.Seconds(i), times.SpeedRatioToBest(i, kOrdersOf[0]),
                times.SpeedRatioToBest(i, kOrdersOf[1]), times.SpeedRatioToBest(i, kOrdersOf[2]));
}

int Run(uint32_t only_group) {
  std::vector<AttentionContext> contexts;
  for (const Codec* codec : AllCodecs()) {
    Result<AttentionContext> context = AttentionContext::Make(*codec, kContextTokens);
    if (!context.ok()) {
      std::fprintf(stderr, "peers: %s\n", context.status().ToString().c_str());
      return 1;
    }
    contexts.push_back(std::move(*context));
  }
  for (const Field& field : DescribeMachine()) std::printf("%-10s %s\n", field.name, field.value.c_str());
  std::printf("%-10s %s\n\n", "simd", std::string(SimdLevelName(CurrentSimdLevel())).c_str());
  std::printf("%-26s %14s %16s %14s %14s %14s\n", "", "queries per KV", "context tokens/s", "x best f16",
              "x best q8_0", "x best q4_0");
  for (const uint32_t group : kQueryGroups)
    if (only_group == 0 || only_group == group) MeasureGroup(contexts, group);
  return 0;
}

}  // namespace
}  // namespace kvtier::bench

/// Arguments: none, or the query heads per KV head (1, 4 or 8) to measure alone.
int main(int argc, char** argv) {
  return kvtier::bench::Run(argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 0);
}
