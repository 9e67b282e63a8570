#pragma once

#include <cstdint>

#include "kernels/dequantize.h"

// What the vector decoders share, whatever the target: nothing here is compiled per target.

namespace kvtier::simd {

/// Where the rows of a layer go. Page tables are asked once per token, not once per row.
struct RowTargets {
  int64_t token_offset[kMaxTokens];  ///< bytes, of head 0
  int64_t head_stride;
  std::byte* k;
  std::byte* v;

  explicit RowTargets(const DequantizeArgs& args)
      : head_stride(args.out.head_stride), k(args.out.k), v(args.out.v) {
    for (uint32_t token = 0; token < args.shape.tokens; ++token) token_offset[token] = args.out.Row(0, token);
  }

  /// Where rows of a head begin, but for the token's offset.
  std::byte* K(uint32_t head) const { return k + head * head_stride; }
  std::byte* V(uint32_t head) const { return v + head * head_stride; }

  /// Whether every row of K and V begins on a cache line.
  bool AreAligned(const BlockShape& shape) const {
    uint64_t bits =
        reinterpret_cast<uintptr_t>(k) | reinterpret_cast<uintptr_t>(v) | static_cast<uint64_t>(head_stride);
    for (uint32_t token = 0; token < shape.tokens; ++token)
      bits |= static_cast<uint64_t>(token_offset[token]);
    return bits % 64 == 0;
  }
};

/// The raw rows of one head, by the portable body: they are few.
inline void DecodeRawRows(const DequantizeArgs& args, uint32_t head, const RowTargets& targets) {
  const BlockShape& shape = args.shape;
  for (uint32_t token = 0; token < shape.nraw && token < shape.tokens; ++token) {
    const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
    internal::StoreRawChannels(args.in.k_raw + raw_row * shape.k_dim * 2, shape.k_dim, args.out,
                               args.out.scales.k, targets.K(head) + targets.token_offset[token]);
    internal::StoreRawVRow(args.in.v_raw + raw_row * shape.v_dim * 2, shape.v_dim, args.out,
                           targets.V(head) + targets.token_offset[token]);
  }
}

}  // namespace kvtier::simd
