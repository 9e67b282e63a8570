#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace kvtier {

/// Element types of decoded K and V. Values are those of the image header (codecs/FORMAT.md).
enum class DType : uint8_t { kFp16 = 1, kBf16 = 2, kE4m3 = 3, kE5m2 = 4 };

constexpr uint32_t DTypeBytes(DType dtype) {
  return dtype == DType::kFp16 || dtype == DType::kBf16 ? 2 : 1;
}

inline constexpr uint32_t kMaxTokens = 128;
inline constexpr uint32_t kMaxHeadDim = 256;
inline constexpr uint32_t kMaxRawRows = 4;

/// What is decoded: the shape of one block. All layers of a layer group have the same shape.
struct BlockShape {
  uint16_t layers = 0;
  uint16_t kv_heads = 0;
  uint16_t k_dim = 0;  ///< channels of one K head
  uint16_t v_dim = 0;  ///< channels of one V head
  uint16_t tokens = 0;
  DType dtype = DType::kFp16;
  uint8_t nraw = 0;  ///< first tokens kept as FP16 rows by the plane family (0 for the other codecs)
  uint8_t nb = 0;    ///< boosted K channels per head of the plane family (0 for the other codecs)

  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

/// Bytes of one layer as the engine stores it, contiguous: K [kv_heads][tokens][k_dim], then V
/// [kv_heads][tokens][v_dim].
constexpr uint64_t RawLayerBytes(const BlockShape& s) {
  return uint64_t{s.kv_heads} * s.tokens * (uint64_t{s.k_dim} + s.v_dim) * DTypeBytes(s.dtype);
}
constexpr uint64_t RawBlockBytes(const BlockShape& s) {
  return s.layers * RawLayerBytes(s);
}

/// K and V of one layer inside memory that someone else laid out: element (head, token, channel) of K is at
///   k + Row(head, token) + channel * channel_stride, the same for V. All strides in BYTES.
/// With a page table, token t is in page `page_table[t / page_tokens]`, at slot t % page_tokens in it:
///   Row = page * page_stride + slot * token_stride + head * head_stride.
/// Without one, Row = token * token_stride + head * head_stride.
struct KvLayerView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int64_t channel_stride = 0;
  const int32_t* page_table = nullptr;
  uint32_t page_tokens = 0;
  int64_t page_stride = 0;
  uint32_t first_token = 0;  ///< token 0 of the block is token `first_token` of the view
  DType dtype = DType::kFp16;

  KVTIER_HD int64_t Row(uint32_t head, uint32_t token) const {
    const uint64_t t = uint64_t{first_token} + token;
    if (page_table == nullptr) return static_cast<int64_t>(t) * token_stride + head * head_stride;
    return page_table[t / page_tokens] * page_stride + static_cast<int64_t>(t % page_tokens) * token_stride +
           head * head_stride;
  }
};

}  // namespace kvtier
