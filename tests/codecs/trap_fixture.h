#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "kernels/numerics.h"
#include "tests/codecs/encoded_layer.h"
#include "tests/support/simd_level_test.h"

namespace kvtier {

inline constexpr uint16_t kTrapTokens = 64;

/// Layers written value by value, on every SIMD level.
class TrapTest : public SimdLevelTest {
 protected:
  using Value = std::function<float(uint32_t token, uint32_t channel)>;

  static BlockShape Shape(uint16_t heads = 1, uint16_t dim = 64, uint8_t nraw = 0) {
    return {.layers = 1,
            .kv_heads = heads,
            .k_dim = dim,
            .v_dim = dim,
            .tokens = kTrapTokens,
            .dtype = DType::kFp16,
            .nraw = nraw,
            .nb = 8};
  }
  static Bytes Raw(const BlockShape& shape, const Value& k, const Value& v) {
    Bytes raw(RawLayerBytes(shape));
    size_t at = 0;
    for (const auto& [value, dim] : {std::pair(&k, shape.k_dim), std::pair(&v, shape.v_dim)}) {
      for (uint32_t head = 0; head < shape.kv_heads; ++head)
        for (uint32_t t = 0; t < shape.tokens; ++t)
          for (uint32_t c = 0; c < dim; ++c, at += 2) {
            const float x = (*value)(t, c);
            Store16(&raw[at], shape.dtype == DType::kBf16 ? Bf16FromFp32(x) : Fp16FromFp32(x));
          }
    }
    return raw;
  }
  static float Zero(uint32_t, uint32_t) { return 0; }
  static float Ramp(uint32_t token, uint32_t channel) {
    return static_cast<float>(token % 16) + static_cast<float>(channel % 3);
  }

  static const Codec& Named(const char* name) { return *FindCodec(name); }
  static uint16_t At(const Bytes& bytes, size_t index) { return Load16(&bytes[2 * index]); }
  /// Index of (token, channel) of K, head 0.
  static size_t KIndex(const BlockShape& s, uint32_t token, uint32_t channel) {
    return size_t{token} * s.k_dim + channel;
  }
  static size_t VIndex(const BlockShape& s, uint32_t token, uint32_t channel) {
    return size_t{s.kv_heads} * s.tokens * s.k_dim + size_t{token} * s.v_dim + channel;
  }
  static uint16_t KScale(const EncodedLayer& l, uint32_t channel) { return Load16(&l.part[0][2 * channel]); }
  static uint16_t KMin(const EncodedLayer& l, uint32_t channel) {
    return Load16(&l.part[0][2 * (size_t{l.shape.kv_heads} * l.shape.k_dim + channel)]);
  }
  static const std::byte* VScales(const EncodedLayer& l) {
    return &l.part[0][AlignSection(SectionBytesOf(l.shape).k_ranges)];
  }
  /// Four-bit V code of head 0 at (token, channel) of a kv4p layer with dim 64.
  static uint32_t VCode(const EncodedLayer& l, uint32_t token, uint32_t channel) {
    const SectionBytes b = SectionBytesOf(l.shape);
    const size_t high_at = AlignSection(b.k_ranges) + AlignSection(b.v_scales) + AlignSection(b.raw_rows) +
                           AlignSection(b.k_high);
    const size_t byte = size_t{token} * 16 + channel % 16;
    const uint32_t shift = 2 * (channel / 16);
    const auto high = static_cast<uint32_t>(l.part[0][high_at + byte]),
               low = static_cast<uint32_t>(l.part[3][byte]);
    return (high >> shift & 3) * 4 + (low >> shift & 3);
  }
};

}  // namespace kvtier
