#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/engines/llamacpp/seq_state.h"
#include "kvtier/kvtier.h"

namespace kvtier::llamacpp {

/// Heads of a row: row_bytes == kv_heads * head_dim * 2.
struct HeadShape {
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
};

/// A saved state as the source of a put: token i of the view is the cell at position first + i, wherever in
/// the cache that cell was. Borrows the state's bytes.
class SourceRows {
 public:
  /// Errors: kInvalidArgument unless the state's cells are the positions [first, first + cells), each once.
  static Result<SourceRows> Make(const SeqState& state, HeadShape heads, int32_t first);
  /// Valid while this and the state's bytes live; not copied away from it.
  kvtier_view View() const;

 private:
  SourceRows() = default;

  void* base_ = nullptr;
  SeqShape shape_;
  HeadShape heads_;
  int64_t layer_stride_ = 0;
  std::vector<int32_t> cells_;  ///< by token; empty when they are in order
};

/// Where a fetch writes one block. `*base` is set to where the rows begin and outlives the view.
kvtier_view DestinationRows(SeqStateBuffer& buffer, HeadShape heads, void** base);

/// A run of a sequence's blocks.
struct BlockRun {
  size_t first = 0;
  size_t count = 0;
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

/// Which blocks of a sequence to store, when its first `restored` tokens came from the cache: only those
/// whose tokens this engine has all computed itself, since what was fetched may be less precise than its own.
/// The unfinished block at the end is one of them.
///   refs: all blocks of the sequence from its first token, as kvtier_keys gives them.
BlockRun OwnBlocks(std::span<const kvtier_block_ref> refs, uint64_t restored);

/// The front of `run` that is at most `bytes_max` of state, at least one block; `token_bytes` > 0.
BlockRun FrontWithin(BlockRun run, std::span<const kvtier_block_ref> refs, uint64_t token_bytes,
                     uint64_t bytes_max);

}  // namespace kvtier::llamacpp
