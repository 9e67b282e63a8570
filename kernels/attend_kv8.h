#pragma once

#include <cstdint>

#include "kernels/attend.h"
#include "kernels/attention.h"
#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/kv8_sections.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/team.h"

namespace kvtier {

struct AttendKv8Args {
  BlockShape shape;
  Kv8Sections<const uint8_t> in;
  AttentionQuery query;
  AttentionPartial out;  ///< o in VForm::kPlain
};

namespace internal {

KVTIER_HD inline float ScoreOfKv8Row(const AttendKv8Args& args, uint32_t kv_head, uint32_t t,
                                     const AttendScratch& scratch) {
  const uint32_t k_dim = args.shape.k_dim, nraw = args.shape.nraw;
  if (t < nraw) {
    return DotFp16(scratch.plain_query, args.in.k_raw + 2 * (uint64_t{kv_head} * nraw + t) * k_dim, k_dim);
  }
  const uint8_t* codes = args.in.k_codes + (uint64_t{kv_head} * args.shape.tokens + t) * k_dim;
  float sum = 0;
  for (uint32_t c = 0; c < k_dim; ++c)
    sum += scratch.scaled_query[c] * static_cast<float>(codes[c]) + scratch.bias[c];
  return sum;
}

/// One channel of V over all tokens.
KVTIER_HD inline float SumKv8Channel(const AttendKv8Args& args, uint32_t kv_head, uint32_t c,
                                     const AttendScratch& scratch) {
  const BlockShape& shape = args.shape;
  float sum = 0;
  for (uint32_t t = 0; t < shape.nraw; ++t) {
    const uint64_t at = (uint64_t{kv_head} * shape.nraw + t) * shape.v_dim + c;
    sum += scratch.probability[t] * Fp32FromFp16(Load16(args.in.v_raw + 2 * at));
  }
  for (uint32_t t = shape.nraw; t < shape.tokens; ++t) {
    const uint64_t row = uint64_t{kv_head} * shape.tokens + t;
    sum += scratch.probability[t] * Fp32FromFp16(Load16(args.in.v_scale + 2 * row)) *
           Fp32FromE4m3(args.in.v_codes[row * shape.v_dim + c]);
  }
  return sum;
}

}  // namespace internal

/// Decode attention over one layer of kv8. One block per query head; a lane takes whole tokens for scores,
/// channels for V. fp32. Total and memory-safe on arbitrary, also changing, section bytes.
template <Team T>
KVTIER_HD void AttendKv8(const T& team, const AttendKv8Args& args) {
  const BlockShape& shape = args.shape;
  const uint32_t kv_head = internal::KvHeadOf(shape, args.query, team.block());
  auto& scratch = *reinterpret_cast<AttendScratch*>(team.scratch());
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size()) {
    const uint64_t at = 2 * (uint64_t{kv_head} * shape.k_dim + c);
    const float q = args.query.q[uint64_t{team.block()} * shape.k_dim + c] * args.query.scale;
    scratch.plain_query[c] = q;
    scratch.scaled_query[c] = q * Fp32FromFp16(Load16(args.in.k_scale + at));
    scratch.bias[c] = q * Fp32FromFp16(Load16(args.in.k_min + at));
  }
  team.sync();
  for (uint32_t t = team.rank(); t < shape.tokens; t += team.size())
    scratch.probability[t] = internal::ScoreOfKv8Row(args, kv_head, t, scratch);
  team.sync();
  internal::Softmax(team, shape.tokens, args.out, scratch);
  for (uint32_t c = team.rank(); c < shape.v_dim; c += team.size())
    args.out.o[uint64_t{team.block()} * shape.v_dim + c] = internal::SumKv8Channel(args, kv_head, c, scratch);
  team.sync();
}

}  // namespace kvtier
