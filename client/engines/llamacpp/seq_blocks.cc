#include "client/engines/llamacpp/seq_blocks.h"

#include <algorithm>
#include <string>

#include "tiers/base/check.h"

namespace kvtier::llamacpp {
namespace {

/// One base: the planes of all layers lie at one distance, K of all layers before V of all layers.
kvtier_view RowsView(void* const* base, SeqShape shape, HeadShape heads, int64_t layer_stride) {
  kvtier_view view{};
  view.struct_size = sizeof(view);
  view.bases = base;
  view.n_bases = 1;
  view.layer_stride = layer_stride;
  view.v_offset = shape.layers * layer_stride;
  view.head_stride = int64_t{heads.head_dim} * 2;
  view.token_stride = shape.row_bytes;
  view.dtype = KVTIER_FP16;
  return view;
}

/// The cell of each token. Errors: kInvalidArgument where the positions are not [first, first + cells).
Result<std::vector<int32_t>> CellOfToken(const std::vector<int32_t>& positions, int32_t first) {
  constexpr int32_t kNone = -1;
  std::vector<int32_t> cells(positions.size(), kNone);
  for (size_t cell = 0; cell < positions.size(); ++cell) {
    const int64_t token = int64_t{positions[cell]} - first;
    if (token < 0 || token >= static_cast<int64_t>(cells.size()) ||
        cells[static_cast<size_t>(token)] != kNone) {
      return Status(Code::kInvalidArgument, "sequence state: position " + std::to_string(positions[cell]) +
                                                " is not one of the " + std::to_string(positions.size()) +
                                                " from " + std::to_string(first) + " on, or twice there");
    }
    cells[static_cast<size_t>(token)] = static_cast<int32_t>(cell);
  }
  return cells;
}

}  // namespace

Result<SourceRows> SourceRows::Make(const SeqState& state, HeadShape heads, int32_t first) {
  KVTIER_CHECK(uint64_t{heads.kv_heads} * heads.head_dim * 2 == state.shape().row_bytes);
  if (state.cells() == 0) return Status(Code::kInvalidArgument, "sequence state: no cells");
  SourceRows rows;
  KVTIER_ASSIGN(rows.cells_, CellOfToken(state.positions(), first));
  if (std::is_sorted(rows.cells_.begin(), rows.cells_.end())) rows.cells_.clear();
  // The C ABI has one type for both directions; a put only reads.
  rows.base_ = const_cast<std::byte*>(state.K(0));
  rows.shape_ = state.shape();
  rows.heads_ = heads;
  rows.layer_stride_ = state.shape().layers > 1 ? state.K(1) - state.K(0) : state.V(0) - state.K(0);
  return rows;
}

kvtier_view SourceRows::View() const {
  kvtier_view view = RowsView(&base_, shape_, heads_, layer_stride_);
  if (!cells_.empty()) {
    view.page_table = cells_.data();
    view.n_pages = cells_.size();
    view.page_tokens = 1;
    view.page_stride = shape_.row_bytes;
  }
  return view;
}

kvtier_view DestinationRows(SeqStateBuffer& buffer, HeadShape heads, void** base) {
  KVTIER_CHECK(uint64_t{heads.kv_heads} * heads.head_dim * 2 == buffer.shape().row_bytes);
  *base = buffer.K(0);
  const int64_t layers = buffer.shape().layers;
  return RowsView(base, buffer.shape(), heads, (buffer.V(0) - buffer.K(0)) / layers);
}

BlockRun OwnBlocks(std::span<const kvtier_block_ref> refs, uint64_t restored) {
  const auto own = std::find_if(refs.begin(), refs.end(),
                                [&](const kvtier_block_ref& ref) { return ref.position >= restored; });
  return {.first = static_cast<size_t>(own - refs.begin()), .count = static_cast<size_t>(refs.end() - own)};
}

BlockRun FrontWithin(BlockRun run, std::span<const kvtier_block_ref> refs, uint64_t token_bytes,
                     uint64_t bytes_max) {
  KVTIER_CHECK(run.first + run.count <= refs.size() && token_bytes > 0);
  BlockRun front{.first = run.first, .count = 0};
  for (uint64_t bytes = 0; front.count < run.count; ++front.count) {
    bytes += refs[front.first + front.count].tokens * token_bytes;
    if (bytes > bytes_max && front.count > 0) break;
  }
  return front;
}

}  // namespace kvtier::llamacpp
