#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/boost.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/plane_sections.h"
#include "kernels/team.h"
#include "kernels/tile.h"

// Decode attention over one layer of one block, on the codes as they are stored.

namespace kvtier {

/// What AttendPlanes reads and writes. The low planes and the boost may be null, as for Dequantize.
struct AttendPlanesArgs {
  BlockShape shape;
  PlaneSections<const uint8_t> in;
  AttentionQuery query;
  AttentionPartial out;  ///< o in VForm::kRotated
};

struct AttendScratch {
  float scaled_query[kMaxHeadDim];  ///< q * scale, times the K scale where K is codes
  float bias[kMaxHeadDim];          ///< q * scale times the K minimum
  float plain_query[kMaxHeadDim];   ///< q * scale
  float probability[kMaxTokens];    ///< scores, then exp(score - m)
  uint8_t boost_ids[kMaxHeadDim];
};

/// One block of a launch for each query head.
constexpr LaunchShape AttendLaunch(const AttentionQuery& query) {
  return {.blocks = query.query_heads, .scratch_bytes = sizeof(AttendScratch)};
}
static_assert(sizeof(AttendScratch) <= kScratchBytesMax);

namespace internal {

KVTIER_HD inline uint32_t KvHeadOf(const BlockShape& shape, const AttentionQuery& query,
                                   uint32_t query_head) {
  return query_head / (query.query_heads / shape.kv_heads);
}

KVTIER_HD inline float DotFp16(const float* x, const uint8_t* halves, uint32_t n) {
  float sum = 0;
  for (uint32_t i = 0; i < n; ++i) sum += x[i] * Fp32FromFp16(Load16(halves + 2 * i));
  return sum;
}

/// exp(score - m). A score that is not a number, or is +infinity, gives NaN: it must not look like a token
/// that is merely far away.
KVTIER_HD inline float WeightOf(float score, float m) {
  return score == -INFINITY ? 0.0f : expf(score - m);
}

/// scratch.probability[tokens]: from scores to exp(score - m). Writes m and l of the query head. Starts and
/// ends synchronized. Every lane finds the same maximum for itself.
template <Team T>
KVTIER_HD void Softmax(const T& team, uint32_t tokens, const AttentionPartial& out, AttendScratch& scratch) {
  float m = -INFINITY;
  for (uint32_t t = 0; t < tokens; ++t) m = scratch.probability[t] > m ? scratch.probability[t] : m;
  team.sync();
  for (uint32_t t = team.rank(); t < tokens; t += team.size())
    scratch.probability[t] = WeightOf(scratch.probability[t], m);
  team.sync();
  if (team.rank() == 0) {
    float l = 0;
    for (uint32_t t = 0; t < tokens; ++t) l += scratch.probability[t];
    out.m[team.block()] = m;
    out.l[team.block()] = l;
  }
}

/// q . k^_t = sum (q s) c_t + sum q m: the scale goes into the query once, the minimum is one number a block.
/// At INT2 codes are 4h, the minimum is that of INT2, and boosted channels have their own code and minimum.
template <Team T>
KVTIER_HD void LoadQuery(const T& team, const AttendPlanesArgs& args, uint32_t kv_head,
                         AttendScratch& scratch) {
  const BlockShape& shape = args.shape;
  const uint32_t k_dim = shape.k_dim;
  const float* q = args.query.q + uint64_t{team.block()} * k_dim;
  const uint64_t first = uint64_t{kv_head} * k_dim;
  const bool has_boost = args.in.boost_ids != nullptr && args.in.k_low == nullptr;
  for (uint32_t c = team.rank(); c < k_dim; c += team.size()) {
    const float scale = Fp32FromFp16(Load16(args.in.k_scale + 2 * (first + c)));
    const float minimum = Fp32FromFp16(Load16(args.in.k_min + 2 * (first + c)));
    scratch.plain_query[c] = q[c] * args.query.scale;
    scratch.scaled_query[c] = scratch.plain_query[c] * scale;
    scratch.bias[c] =
        scratch.plain_query[c] * (args.in.k_low == nullptr ? KMinimumInt2(scale, minimum) : minimum);
  }
  team.sync();
  if (!has_boost) return;
  for (uint32_t i = team.rank(); i < shape.nb; i += team.size()) {
    const uint8_t id = args.in.boost_ids[uint64_t{kv_head} * shape.nb + i];
    const uint32_t c = id < k_dim ? id : k_dim - 1;
    scratch.boost_ids[i] = static_cast<uint8_t>(c);
    scratch.bias[c] = q[c] * args.query.scale * Fp32FromFp16(Load16(args.in.k_min + 2 * (first + c)));
  }
  team.sync();
}

KVTIER_HD inline float ScoreOfRow(const AttendPlanesArgs& args, uint64_t row, const AttendScratch& scratch) {
  const uint32_t k_dim = args.shape.k_dim, nb = args.shape.nb;
  uint8_t codes[kMaxHeadDim] = {};
  if (args.in.boost_ids != nullptr && args.in.k_low == nullptr)
    UnpackBoostRow(args.in.boost_low + row * (nb / 4), scratch.boost_ids, nb, codes);
  float sum = 0;
  for (uint32_t first = 0; first < k_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(k_dim, first);
    const uint64_t plane_byte = row * (k_dim / 4) + first / 4;
    UnpackTile<kHighShift>(args.in.k_high + plane_byte, n, codes + first);
    if (args.in.k_low != nullptr) UnpackTile<kLowShift>(args.in.k_low + plane_byte, n, codes + first);
    for (uint32_t i = first; i < first + n; ++i)
      sum += scratch.scaled_query[i] * static_cast<float>(codes[i]) + scratch.bias[i];
  }
  return sum;
}

/// One group of V over all tokens, in rotated form: v = z * s / 2 for codes, H64 v / 8 for raw rows.
KVTIER_HD inline void SumVGroup(const AttendPlanesArgs& args, uint32_t kv_head, uint32_t first,
                                const AttendScratch& scratch, float* out) {
  const BlockShape& shape = args.shape;
  const uint32_t v_dim = shape.v_dim, n = TileCodes(v_dim, first);
  const int32_t offset = args.in.v_low != nullptr ? kVOffsetInt4 : kVOffsetInt2;
  float sum[kTileCodes] = {};
  for (uint32_t t = 0; t < shape.nraw && t < shape.tokens; ++t) {
    const uint8_t* raw = args.in.v_raw + 2 * ((uint64_t{kv_head} * shape.nraw + t) * v_dim + first);
    float values[kTileCodes];
    for (uint32_t i = 0; i < n; ++i) values[i] = Fp32FromFp16(Load16(raw + 2 * i));
    RotateV(values, n);
    for (uint32_t i = 0; i < n; ++i) sum[i] += scratch.probability[t] * values[i];
  }
  for (uint32_t t = shape.nraw; t < shape.tokens; ++t) {
    const uint64_t row = PlaneRow(shape, kv_head, t), plane_byte = row * (v_dim / 4) + first / 4;
    const uint8_t scale_byte = args.in.v_scale[row * VGroups(shape) + first / kTileCodes];
    uint8_t codes[kTileCodes] = {};
    UnpackTile<kHighShift>(args.in.v_high + plane_byte, n, codes);
    if (args.in.v_low != nullptr) UnpackTile<kLowShift>(args.in.v_low + plane_byte, n, codes);
    const float weight = scratch.probability[t] * (Fp32FromFp16(static_cast<uint16_t>(scale_byte << 7)) / 2);
    for (uint32_t i = 0; i < n; ++i) sum[i] += weight * static_cast<float>(2 * codes[i] + offset);
  }
  for (uint32_t i = 0; i < n; ++i) out[first + i] = sum[i];
}

}  // namespace internal

/// Decode attention over one layer of the plane family (codecs/FORMAT.md, "Attention"). One block per query
/// head; a lane takes whole tokens for scores, groups of 64 channels for V. fp32, without the last rounding
/// of the decoder. Total and memory-safe on arbitrary, also changing, section bytes. Equal between teams up
/// to the compiler's expf.
template <Team T>
KVTIER_HD void AttendPlanes(const T& team, const AttendPlanesArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t kv_head = internal::KvHeadOf(shape, args.query, team.block());
  auto& scratch = *reinterpret_cast<AttendScratch*>(team.scratch());
  internal::LoadQuery(team, args, kv_head, scratch);
  for (uint32_t t = team.rank(); t < shape.tokens; t += team.size()) {
    if (t < shape.nraw) {
      const uint8_t* raw = args.in.k_raw + 2 * (uint64_t{kv_head} * shape.nraw + t) * shape.k_dim;
      scratch.probability[t] = internal::DotFp16(scratch.plain_query, raw, shape.k_dim);
    } else {
      scratch.probability[t] = internal::ScoreOfRow(args, PlaneRow(shape, kv_head, t), scratch);
    }
  }
  team.sync();
  internal::Softmax(team, shape.tokens, args.out, scratch);
  float* o = args.out.o + uint64_t{team.block()} * shape.v_dim;
  for (uint32_t group = team.rank(); group < VGroups(shape); group += team.size())
    internal::SumVGroup(args, kv_head, group * kTileCodes, scratch, o);
  team.sync();
}

}  // namespace kvtier
