#pragma once

#include "codecs/codec.h"

// Which shapes the codecs of 16-bit sources take.

namespace kvtier {

constexpr bool HeadDimFits(uint16_t dim) {
  return dim > 0 && dim <= kMaxHeadDim && dim % 16 == 0;
}

constexpr bool Supports16BitShape(const BlockShape& s) {
  return s.layers > 0 && s.kv_heads > 0 && HeadDimFits(s.k_dim) && HeadDimFits(s.v_dim) && s.tokens > 0 &&
         s.tokens <= kMaxTokens && (s.dtype == DType::kFp16 || s.dtype == DType::kBf16);
}

}  // namespace kvtier
