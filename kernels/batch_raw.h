#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_source.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

// Raw layers of batches: gathered as they are, and converted where an engine wants another type.

namespace kvtier::internal {

/// Bytes of n elements from a strided row to a contiguous one.
KVTIER_HD inline void CopyRun(const std::byte* from, const Elements& elements, std::byte* to) {
  const uint32_t bytes = DTypeBytes(elements.dtype);
  if (elements.is_dense) {
    if (bytes == 2) {
      StoreWord(to, LoadWord<uint64_t>(from));
    } else {
      StoreWord(to, LoadWord<uint32_t>(from));
    }
    return;
  }
  for (uint32_t i = 0; i < kRun * bytes; ++i) to[i] = from[i / bytes * elements.stride + i % bytes];
}

/// One head as the engine stores it, into the base of a raw layer.
template <Team T>
KVTIER_HD void GatherRawHead(const T& team, const RowSource& source, const CodedLayer<uint8_t>& target,
                             uint32_t head) {
  const BlockShape& s = target.shape;
  const uint32_t bytes = DTypeBytes(s.dtype);
  auto* base = reinterpret_cast<std::byte*>(target.base);
  const uint64_t k_row = uint64_t{s.k_dim} * bytes, v_row = uint64_t{s.v_dim} * bytes;
  std::byte* k = base + head * s.tokens * k_row;
  std::byte* v = base + s.kv_heads * s.tokens * k_row + head * s.tokens * v_row;
  const uint32_t k_runs = s.k_dim / kRun, v_runs = s.v_dim / kRun;
  for (uint32_t at = team.rank(); at < s.tokens * k_runs; at += team.size()) {
    const uint32_t token = at / k_runs, run = at % k_runs * kRun;
    CopyRun(source.k + source.rows[token] + run * source.k_elements.stride, source.k_elements,
            k + token * k_row + uint64_t{run} * bytes);
  }
  for (uint32_t at = team.rank(); at < s.tokens * v_runs; at += team.size()) {
    const uint32_t token = at / v_runs, run = at % v_runs * kRun;
    CopyRun(source.v + source.rows[token] + run * source.v_elements.stride, source.v_elements,
            v + token * v_row + uint64_t{run} * bytes);
  }
  if (head == 0) ZeroPadding(team, target.base, s.kv_heads * s.tokens * (k_row + v_row));
}

}  // namespace kvtier::internal
