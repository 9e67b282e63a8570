#pragma once

#include <cstdint>

#include "kernels/layout.h"
#include "kernels/team.h"

// kv8 (codecs/FORMAT.md): K in 255 steps per channel, V in FP8 E4M3 per token. Tokens are not padded.

namespace kvtier {

/// One layer as bare pointers (Byte is uint8_t, const or not). fp16 are pairs of bytes.
template <typename Byte>
struct Kv8Sections {
  Byte* k_scale = nullptr;  ///< fp16 [heads][k_dim]
  Byte* k_min = nullptr;    ///< fp16 [heads][k_dim]
  Byte* v_scale = nullptr;  ///< fp16 [heads][tokens]
  Byte* k_raw = nullptr;    ///< fp16 [heads][nraw][k_dim]
  Byte* v_raw = nullptr;    ///< fp16 [heads][nraw][v_dim]
  Byte* k_codes = nullptr;  ///< [heads][tokens][k_dim]
  Byte* v_codes = nullptr;  ///< E4M3 [heads][tokens][v_dim]
};

struct Kv8Scratch {
  float scale[kMaxHeadDim];
  float minimum[kMaxHeadDim];
  float inverse[kMaxHeadDim];  ///< encoder only
};

constexpr LaunchShape Kv8Launch(const BlockShape& shape) {
  return {.blocks = shape.kv_heads, .scratch_bytes = sizeof(Kv8Scratch)};
}

}  // namespace kvtier
