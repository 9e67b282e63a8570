#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/engines/llamacpp/seq_blocks.h"
#include "client/engines/llamacpp/seq_state.h"
#include "kernels/layout.h"

namespace kvtier::eval {

/// K and V of the tokens [0, tokens) of a sequence, inside the bytes of a state that llama.cpp has saved and
/// takes back. A copy is another cache. Threads: single-owner.
class ContextKv {
 public:
  /// Errors: kInvalidArgument for bytes that are no such state, or whose cells are not in order.
  static Result<ContextKv> Make(std::vector<std::byte> state, llamacpp::HeadShape heads);

  std::span<const std::byte> state() const { return state_; }
  uint32_t tokens() const { return tokens_; }
  uint16_t layers() const { return static_cast<uint16_t>(shape_.layers); }
  llamacpp::HeadShape heads() const { return heads_; }
  /// One layer from `first_token` on, FP16.
  KvLayerView View(uint32_t layer, uint32_t first_token);
  /// Zeros in the place of every K and V.
  void Blank();
  /// Numbers of K and V together.
  double elements() const;

 private:
  ContextKv() = default;

  std::vector<std::byte> state_;
  llamacpp::SeqShape shape_;
  llamacpp::HeadShape heads_;
  uint32_t tokens_ = 0;
  size_t first_row_ = 0;    ///< offset of layer 0's K
  size_t plane_bytes_ = 0;  ///< between two layers' K, and two layers' V
};

}  // namespace kvtier::eval
