#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attend.h"
#include "kernels/attention.h"
#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/source_rows.h"
#include "kernels/team.h"

// Decode attention over rows as the engine stored them: raw16, and layers that could not be encoded.

namespace kvtier {

struct AttendRowsArgs {
  BlockShape shape;                ///< dtype says what the rows are
  const std::byte* raw = nullptr;  ///< K [kv_heads][tokens][k_dim], then V [kv_heads][tokens][v_dim]
  AttentionQuery query;
  AttentionPartial out;  ///< o in VForm::kPlain
};

namespace internal {

KVTIER_HD inline float RowElement(const std::byte* row, DType dtype, uint32_t i) {
  float value;
  LoadTile(row + uint64_t{i} * DTypeBytes(dtype), dtype, 1.0f, 1, &value);
  return value;
}

}  // namespace internal

/// One block per query head; a lane takes whole tokens for scores, channels for V. fp32.
/// Safe on arbitrary, also changing, bytes.
template <Team T>
KVTIER_HD void AttendRows(const T& team, const AttendRowsArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t k_dim = shape.k_dim, v_dim = shape.v_dim, bytes = DTypeBytes(shape.dtype);
  const uint64_t first_row = uint64_t{internal::KvHeadOf(shape, args.query, team.block())} * shape.tokens;
  const Fp8Scales scales = IsFp8(shape.dtype) ? args.query.scales : Fp8Scales{};
  auto& scratch = *reinterpret_cast<AttendScratch*>(team.scratch());
  for (uint32_t c = team.rank(); c < k_dim; c += team.size())
    scratch.plain_query[c] = args.query.q[uint64_t{team.block()} * k_dim + c] * args.query.scale * scales.k;
  team.sync();
  for (uint32_t t = team.rank(); t < shape.tokens; t += team.size()) {
    const std::byte* row = args.raw + (first_row + t) * k_dim * bytes;
    float score = 0;
    for (uint32_t c = 0; c < k_dim; ++c)
      score += scratch.plain_query[c] * internal::RowElement(row, shape.dtype, c);
    scratch.probability[t] = score;
  }
  team.sync();
  internal::Softmax(team, shape.tokens, args.out, scratch);
  const std::byte* v =
      args.raw + (uint64_t{shape.kv_heads} * shape.tokens * k_dim + first_row * v_dim) * bytes;
  for (uint32_t c = team.rank(); c < v_dim; c += team.size()) {
    float sum = 0;
    for (uint32_t t = 0; t < shape.tokens; ++t)
      sum += scratch.probability[t] * internal::RowElement(v + uint64_t{t} * v_dim * bytes, shape.dtype, c);
    args.out.o[uint64_t{team.block()} * v_dim + c] = sum * scales.v;
  }
  team.sync();
}

}  // namespace kvtier
