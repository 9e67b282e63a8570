#include "tests/eval/attend_hook.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/numerics.h"
#include "kernels/simd/attend_simd.h"
#include "tiers/base/check.h"

namespace kvtier::eval {
namespace {

/// A node of llama.cpp's flash attention, all in the CPU's memory:
///   q [query_heads][queries][dim] fp32, k and v [kv_heads][cells][dim] fp16, any strides
///   mask [queries][cells] fp16, contiguous: 0 where a query sees a cell
///   out [queries][query_heads][dim] fp32, contiguous
class AttentionNode {
 public:
  /// Errors: kUnimplemented for anything but that, scaled and masked.
  static Result<AttentionNode> Make(ggml_tensor& out, const BlockShape& shape);

  uint32_t layer() const { return layer_; }
  uint32_t queries() const { return static_cast<uint32_t>(out_->ne[2]); }
  uint32_t query_heads() const { return static_cast<uint32_t>(out_->ne[1]); }
  float scale() const { return Parameter(0); }

  /// Whether query i sees the first `context` + i + 1 cells and no other.
  bool SeesCellsInOrder(uint32_t context) const;
  /// [query_heads][dim]
  std::vector<float> Queries(uint32_t query) const;
  /// K and V from this cell on.
  KvLayerView Cells(uint32_t first) const;
  float* Out(uint32_t query) const {
    return reinterpret_cast<float*>(static_cast<char*>(out_->data) + query * out_->nb[2]);
  }

 private:
  float Parameter(int i) const {
    float value = 0;
    memcpy(&value, &out_->op_params[i], sizeof(value));
    return value;
  }

  const ggml_tensor* out_ = nullptr;
  const ggml_tensor *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *mask_ = nullptr;
  uint32_t layer_ = 0;
};

Result<AttentionNode> AttentionNode::Make(ggml_tensor& out, const BlockShape& shape) {
  AttentionNode node;
  node.out_ = &out;
  node.q_ = out.src[0], node.k_ = out.src[1], node.v_ = out.src[2], node.mask_ = out.src[3];
  const ggml_tensor &q = *node.q_, &k = *node.k_, &v = *node.v_;
  const bool types = q.type == GGML_TYPE_F32 && k.type == GGML_TYPE_F16 && v.type == GGML_TYPE_F16;
  const bool plain =
      node.mask_ != nullptr && out.src[4] == nullptr && node.Parameter(1) == 0 && node.Parameter(2) == 0;
  const bool sizes = k.ne[0] == shape.k_dim && v.ne[0] == shape.v_dim && k.ne[2] == shape.kv_heads &&
                     v.ne[2] == shape.kv_heads && q.ne[3] == 1 && q.ne[2] % shape.kv_heads == 0;
  // One view serves both, so their strides have to be the same.
  const bool strides = k.nb[0] == 2 && v.nb[0] == 2 && k.nb[1] == v.nb[1] && k.nb[2] == v.nb[2];
  const bool named = std::sscanf(k.name, "cache_k_l%u", &node.layer_) == 1 && node.layer_ < shape.layers;
  if (!types || !plain || !sizes || !strides || !named)
    return Status(Code::kUnimplemented, "the model's attention is more than a softmax over an FP16 cache");
  return node;
}

bool AttentionNode::SeesCellsInOrder(uint32_t context) const {
  const auto cells = static_cast<uint32_t>(k_->ne[1]);
  if (mask_->ne[0] != cells || mask_->ne[1] < queries() || context + queries() > cells) return false;
  for (uint32_t query = 0; query < queries(); ++query) {
    const char* const row = static_cast<const char*>(mask_->data) + query * mask_->nb[1];
    for (uint32_t cell = 0; cell < cells; ++cell) {
      const float expected = cell <= context + query ? 0.0f : -INFINITY;
      if (Fp32FromFp16(Load16(row + size_t{cell} * 2)) != expected) return false;
    }
  }
  return true;
}

std::vector<float> AttentionNode::Queries(uint32_t query) const {
  const auto dim = static_cast<size_t>(q_->ne[0]);
  std::vector<float> queries(query_heads() * dim);
  for (uint32_t head = 0; head < query_heads(); ++head)
    memcpy(&queries[head * dim], static_cast<const char*>(q_->data) + query * q_->nb[1] + head * q_->nb[2],
           dim * sizeof(float));
  return queries;
}

KvLayerView AttentionNode::Cells(uint32_t first) const {
  KvLayerView view = {.head_stride = static_cast<int64_t>(k_->nb[2]),
                      .token_stride = static_cast<int64_t>(k_->nb[1]),
                      .channel_stride = 2,
                      .dtype = DType::kFp16};
  view.k = static_cast<std::byte*>(k_->data) + first * k_->nb[1];
  view.v = static_cast<std::byte*>(v_->data) + first * v_->nb[1];
  return view;
}

/// One query token's attention, part by part.
class Sums {
 public:
  Sums(uint32_t query_heads, uint32_t v_dim)
      : heads_(query_heads), v_dim_(v_dim), part_(query_heads, v_dim), all_(query_heads, v_dim) {}

  /// What the next part is written to.
  AttentionPartial part() { return part_.View(); }
  void AddPart(VForm form) {
    for (uint32_t head = 0; head < heads_ && form == VForm::kRotated; ++head)
      RotateV(&part_.o[size_t{head} * v_dim_], v_dim_);
    MergeAttentionSimd(part(), heads_, v_dim_, all_.View());
  }
  /// out [query_heads][v_dim]
  void Write(float* out) const {
    for (uint32_t head = 0; head < heads_; ++head)
      for (uint32_t c = 0; c < v_dim_; ++c, ++out) *out = all_.o[size_t{head} * v_dim_ + c] / all_.l[head];
  }

 private:
  struct Arrays {
    Arrays(uint32_t heads, uint32_t v_dim) : o(size_t{heads} * v_dim), m(heads, -INFINITY), l(heads) {}
    AttentionPartial View() { return {.o = o.data(), .m = m.data(), .l = l.data()}; }
    std::vector<float> o, m, l;
  };

  uint32_t heads_, v_dim_;
  Arrays part_, all_;
};

/// The batch's own tokens [0, tokens), as raw blocks.
void AddNewTokens(const AttentionNode& node, uint32_t context, uint32_t tokens, const AttentionQuery& query,
                  BlockShape shape, Sums& sums) {
  std::vector<std::byte> raw;
  for (uint32_t first = 0; first < tokens; first += kMaxTokens) {
    shape.tokens = static_cast<uint16_t>(std::min(kMaxTokens, tokens - first));
    raw.resize(RawLayerBytes(shape));
    GatherRawLayer(shape, node.Cells(context + first), raw);
    sums.AddPart(AttendRawLayer(shape, raw, query, sums.part()));
  }
}

}  // namespace

bool AttendHook::OnNode(ggml_tensor* node, bool ask, void* hook) {
  auto& self = *static_cast<AttendHook*>(hook);
  if (self.blocks_.empty() || node->op != GGML_OP_FLASH_ATTN_EXT) return !ask;
  if (!ask && self.status_.ok()) self.status_ = self.Replace(*node);
  return true;  // an error is Finish's to tell: a graph that ends early is none for llama.cpp
}

void AttendHook::Start(std::span<const StoredBlock> blocks) {
  KVTIER_CHECK(blocks_.empty() && !blocks.empty());
  blocks_ = blocks, replaced_ = 0, status_ = Status::Ok();
}

Status AttendHook::Finish() {
  KVTIER_CHECK(!blocks_.empty());
  const uint32_t layers = blocks_[0].image.identity.shape.layers;
  blocks_ = {};
  KVTIER_TRY(std::move(status_));
  if (replaced_ != layers)
    return Status(Code::kInternal, "attention of " + std::to_string(replaced_) + " layers was replaced");
  return Status::Ok();
}

Status AttendHook::Replace(ggml_tensor& attention) {
  const BlockIdentity& last = blocks_.back().image.identity;
  const auto context = static_cast<uint32_t>(last.first_position + last.shape.tokens);
  KVTIER_ASSIGN(const AttentionNode node, AttentionNode::Make(attention, last.shape));
  if (!node.SeesCellsInOrder(context))
    return Status(Code::kInternal, "the cache's cells are not in the order of the sequence");
  const auto layer = static_cast<uint16_t>(node.layer());
  for (uint32_t i = 0; i < node.queries(); ++i) {
    const std::vector<float> q = node.Queries(i);
    const AttentionQuery query = {.q = q.data(), .query_heads = node.query_heads(), .scale = node.scale()};
    Sums sums(node.query_heads(), last.shape.v_dim);
    for (const StoredBlock& block : blocks_) {
      const ImageView& image = block.image;
      sums.AddPart(image.codec->attend(image.identity.shape, image.table[layer].planes, image.Parts(layer),
                                       query, sums.part()));
    }
    AddNewTokens(node, context, i + 1, query, last.shape, sums);
    sums.Write(node.Out(i));
  }
  ++replaced_;
  return Status::Ok();
}

}  // namespace kvtier::eval
