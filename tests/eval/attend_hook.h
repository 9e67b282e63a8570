#pragma once

#include <cstdint>
#include <span>

#include "client/engines/llamacpp/llama_handles.h"
#include "tests/eval/methods.h"

namespace kvtier::eval {

/// Puts attention over blocks as they are stored, as kvtier_attend computes it, in the place of llama.cpp's
/// own: after each layer's flash attention over the cache its result is replaced by that of the blocks, which
/// hold all tokens before the batch, and of the batch's own tokens up to each query, in FP16 as the cache has
/// them. What the cache has of the tokens before is not read. Threads: that of Decode.
class AttendHook {
 public:
  /// llama.cpp's cb_eval; `hook` is an AttendHook. Does nothing but between Start and Finish.
  static bool OnNode(ggml_tensor* node, bool ask, void* hook);

  /// Of one Decode of one batch. Blocks hold the sequence's tokens [0, n), in order, in the cache's first n
  /// cells, and live until Finish; there is at least one.
  void Start(std::span<const StoredBlock> blocks);
  /// Errors: kUnimplemented for a model whose attention is more than a softmax over its cache in FP16;
  /// kInternal unless every layer's attention was replaced once.
  Status Finish();

 private:
  Status Replace(ggml_tensor& attention);

  std::span<const StoredBlock> blocks_;  ///< empty: not started
  uint32_t replaced_ = 0;                ///< layers
  Status status_;
};

}  // namespace kvtier::eval
