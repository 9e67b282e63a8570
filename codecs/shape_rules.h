#pragma once

#include "codecs/codec.h"

// Which shapes the codecs take.

namespace kvtier {

constexpr bool HeadDimFits(uint16_t dim) {
  return dim > 0 && dim <= kMaxHeadDim && dim % 16 == 0;
}

/// What every codec asks of a block. Its dtype is one that an engine may store.
constexpr bool HasCodecShape(const BlockShape& s) {
  return s.layers > 0 && s.kv_heads > 0 && HeadDimFits(s.k_dim) && HeadDimFits(s.v_dim) && s.tokens > 0 &&
         s.tokens <= kMaxTokens && s.dtype != DType::kFp32 && DTypeBytes(s.dtype) != 0;
}

}  // namespace kvtier
