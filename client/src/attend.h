#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/src/leased_image.h"
#include "kernels/attention.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// A kvtier_attention checked against its model. Borrows the caller's arrays.
struct Attention {
  AttentionQuery query;
  AttentionPartial out;   ///< plain V
  float* mass = nullptr;  ///< by block, or null
  uint16_t layer = 0;

  /// For `blocks` blocks. Errors: kInvalidArgument, naming what is wrong.
  static Result<Attention> Check(const kvtier_attention* attention, uint32_t layer, const ModelSpec& spec,
                                 size_t blocks);
};

/// Attention over blocks [first, first + results.size()) of the lease, straight from the mapped arenas. Every
/// block gets its own result; one that is not OK is left out of the sums and has mass 0.
void AttendBlocks(Lease& lease, size_t first, const Attention& attention,
                  std::span<kvtier_block_result> results);

/// Attention over one layer of a checked image into `out`; the layer's checksums are verified once. Answers
/// the form of out.o. Errors: kStale when the slot is no longer the guard's; kDataLoss.
Result<VForm> AttendImage(CheckedBlock& block, uint16_t layer, const AttentionQuery& query,
                          const AttentionPartial& out, const SlotGuard& guard);

/// Room for one o, m and l that start as attention over no tokens.
class OwnedPartial {
 public:
  OwnedPartial(uint32_t query_heads, uint32_t v_dim)
      : o_(size_t{query_heads} * v_dim), m_(query_heads, -INFINITY), l_(query_heads) {}
  AttentionPartial View() { return {.o = o_.data(), .m = m_.data(), .l = l_.data()}; }

 private:
  std::vector<float> o_, m_, l_;
};

}  // namespace kvtier::client
