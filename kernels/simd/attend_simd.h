#pragma once

#include <cstdint>

#include "kernels/attend.h"
#include "kernels/attend_kv8.h"
#include "kernels/attend_rows.h"

namespace kvtier {

/// AttendPlanes for all blocks of its launch, on the calling thread, with the widest vectors that the CPU
/// has. Beyond the portable level dot products are of integers: q times the K scales is rounded to int8 per
/// (block, query head), exp(score - m) times the V scales to uint8 per (block, query head, group). That adds
/// to the error of the codes: codecs/FORMAT.md, "Attention", says how much. All vector levels do the same
/// integer arithmetic.
void AttendPlanesSimd(const AttendPlanesArgs& args);

/// AttendRows and AttendKv8 likewise, in fp32; sums are in another order than the portable body's.
void AttendRowsSimd(const AttendRowsArgs& args);
void AttendKv8Simd(const AttendKv8Args& args);

/// MergeAttentionHead for all heads.
void MergeAttentionSimd(const AttentionPartial& from, uint32_t query_heads, uint32_t v_dim,
                        const AttentionPartial& into);

}  // namespace kvtier
