#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/tile.h"

// Attention in parts: what one block gives, and how parts become one result (the merge of FlashInfer,
// arXiv:2501.01005, section 2).

namespace kvtier {

/// The queries of one decode step. They come after every token of a block: nothing is masked.
struct AttentionQuery {
  const float* q = nullptr;  ///< [query_heads][k_dim], after RoPE
  uint32_t query_heads =
      0;                  ///< a multiple of kv_heads: query head h reads KV head h / (query_heads / kv_heads)
  float scale = 1;        ///< what dot products are multiplied by, usually 1 / sqrt(k_dim)
  Fp8Scales scales = {};  ///< of the layer, FP8 sources only
};

/// Attention over some tokens, by query head, with scores x_t = scale * q . k_t:
///   m = max x_t      l = sum exp(x_t - m)      o = sum exp(x_t - m) * v_t, in a VForm
/// The attention itself is o / l. No tokens: m = -infinity, l = 0, o = 0. An engine makes the same three
/// numbers of the tokens that are not in blocks, and merges. A score that is not a number, or is +infinity,
/// makes l NaN; m leaves NaN out.
struct AttentionPartial {
  float* o = nullptr;  ///< [query_heads][v_dim]
  float* m = nullptr;  ///< [query_heads]
  float* l = nullptr;  ///< [query_heads]
};

/// log(sum exp(x_t)). -infinity for no tokens.
KVTIER_HD inline float LogSumExp(float m, float l) {
  return m + logf(l);
}
/// The share of the attention that went to a part: exp(lse_part - lse_all). 0 where there were no tokens at
/// all, NaN where one of the two is.
KVTIER_HD inline float AttentionMass(float part_lse, float all_lse) {
  return part_lse == -INFINITY ? 0.0f : expf(part_lse - all_lse);
}

/// What the sums of a part with maximum m are multiplied by when the maximum becomes `all`.
KVTIER_HD inline float MergeFactor(float m, float all) {
  if (m == all) return 1.0f;  // one of the two in every merge
  return m > -INFINITY ? expf(m - all) : 0.0f;
}
/// One head of `from` into the same head of `into`; o of both in the same form.
KVTIER_HD inline void MergeAttentionHead(const AttentionPartial& from, uint32_t head, uint32_t v_dim,
                                         const AttentionPartial& into) {
  const float m = from.m[head] > into.m[head] ? from.m[head] : into.m[head];
  const float of_from = MergeFactor(from.m[head], m), of_into = MergeFactor(into.m[head], m);
  const float* source = from.o + uint64_t{head} * v_dim;
  float* target = into.o + uint64_t{head} * v_dim;
  for (uint32_t c = 0; c < v_dim; ++c) target[c] = target[c] * of_into + source[c] * of_from;
  into.l[head] = into.l[head] * of_into + from.l[head] * of_from;
  into.m[head] = m;
}

/// A row of V [v_dim] between its two forms, both ways: H64 / 8 is its own inverse.
KVTIER_HD inline void RotateV(float* row, uint32_t v_dim) {
  for (uint32_t first = 0; first + kTileCodes <= v_dim; first += kTileCodes) {
    Hadamard64(row + first);
    for (uint32_t i = 0; i < kTileCodes; ++i) row[first + i] *= 0.125f;
  }
}

}  // namespace kvtier
