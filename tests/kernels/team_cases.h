#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/fp8.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"

// Blocks on which teams are compared, what is encoded in them, and where they are decoded to.

namespace kvtier {

inline constexpr uint32_t kSeed = 99;
inline constexpr uint8_t kUnwritten = 0x5A;

inline BlockShape Shape(uint16_t heads, uint16_t k_dim, uint16_t v_dim, uint16_t tokens, uint8_t nraw,
                        uint8_t nb, DType dtype = DType::kFp16) {
  return {.layers = 1,
          .kv_heads = heads,
          .k_dim = k_dim,
          .v_dim = v_dim,
          .tokens = tokens,
          .dtype = dtype,
          .nraw = nraw,
          .nb = nb};
}

/// Fewer, as many and more channels and tokens than lanes; every kind of last tile; with and without raw rows
/// and boost.
inline std::vector<BlockShape> Shapes() {
  return {
      Shape(1, 16, 16, 4, 0, 4),
      Shape(2, 64, 64, 64, 1, 32),
      Shape(1, 80, 48, 37, 4, 40),
      Shape(1, 128, 128, 128, 0, 64, DType::kBf16),
      Shape(1, 256, 16, 9, 1, 252),
      Shape(1, 16, 256, 126, 0, 0),
      Shape(2, 96, 192, 5, 4, 12, DType::kE4m3),
      Shape(1, 192, 80, 33, 0, 192, DType::kBf16),
  };
}
/// What threads can afford.
inline std::vector<BlockShape> FewShapes() {
  return {Shape(2, 64, 64, 37, 1, 32), Shape(1, 80, 48, 5, 4, 40)};
}

inline std::string Describe(const BlockShape& s) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb) + ", seed " + std::to_string(kSeed);
}

/// Channels of every temper: ordinary, constant, tiny, extreme, and equal ones, for ties of the boost.
inline float RandomValue(uint32_t token, uint32_t channel, std::mt19937& random) {
  const float value = std::normal_distribution<float>()(random);
  switch (channel % 7) {
    case 1:
      return 3;
    case 2:
      return value * 1e-7f;
    case 3:
      return ClampToFp16(value * 40000);
    case 4:
    case 5:
      return static_cast<float>(token % 3);
    default:
      return value;
  }
}

inline std::vector<std::byte> RandomRaw(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  std::vector<std::byte> raw(RawLayerBytes(shape));
  std::byte* at = raw.data();
  for (const uint32_t dim : {shape.k_dim, shape.v_dim}) {
    for (uint32_t i = 0; i < shape.kv_heads * shape.tokens * dim; ++i, at += DTypeBytes(shape.dtype)) {
      const float value = RandomValue(i / dim % shape.tokens, i % dim, random);
      switch (shape.dtype) {
        case DType::kBf16:
          Store16(at, Bf16FromFp32(value));
          break;
        case DType::kE4m3:
          *at = static_cast<std::byte>(E4m3FromFp32(value));
          break;
        default:
          Store16(at, Fp16FromFp32(value));
      }
    }
  }
  return raw;
}

/// The bytes of `values`, which have no padding.
template <typename Value>
void AppendBytes(std::vector<uint8_t>& bytes, const std::vector<Value>& values) {
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  bytes.insert(bytes.end(), first, first + values.size() * sizeof(Value));
}

/// A decoder's view of contiguous rows, wide enough for either.
class Decoded {
 public:
  Decoded(const BlockShape& shape, DType dtype)
      : row_bytes_(size_t{std::max(shape.k_dim, shape.v_dim)} * DTypeBytes(dtype)),
        plane_bytes_(row_bytes_ * shape.kv_heads * shape.tokens),
        bytes_(2 * plane_bytes_, std::byte{kUnwritten}) {
    view_.k = bytes_.data();
    view_.v = bytes_.data() + plane_bytes_;
    view_.token_stride = static_cast<int64_t>(row_bytes_);
    view_.head_stride = static_cast<int64_t>(row_bytes_ * shape.tokens);
    view_.channel_stride = DTypeBytes(dtype);
    view_.dtype = dtype;
  }
  KvLayerView& view() { return view_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  size_t row_bytes_, plane_bytes_;
  std::vector<std::byte> bytes_;
  KvLayerView view_;
};

}  // namespace kvtier
