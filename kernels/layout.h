#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace kvtier {

/// Element types of decoded K and V. Values are those of the image header (codecs/FORMAT.md); fp32 is for
/// destinations alone and never in a header.
enum class DType : uint8_t { kFp16 = 1, kBf16 = 2, kE4m3 = 3, kE5m2 = 4, kFp32 = 5 };

KVTIER_HD constexpr uint32_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kFp16:
    case DType::kBf16:
      return 2;
    case DType::kE4m3:
    case DType::kE5m2:
      return 1;
    case DType::kFp32:
      return 4;
  }
  return 0;
}

/// What a stored FP8 number is multiplied by to give the value, for one layer. Unused by other types.
struct Fp8Scales {
  float k = 1, v = 1;

  friend bool operator==(const Fp8Scales&, const Fp8Scales&) = default;
};

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

/// How a decoder leaves V. Rotated: every group of 64 channels times H64 / 8, for engines that fold the
/// rotation into what follows attention.
enum class VForm : uint8_t { kPlain, kRotated };

/// Whether the destination is read soon, or is so large that the cache should not be filled with it.
enum class Stores : uint8_t { kCached, kStreaming };

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
  Fp8Scales scales = {};            ///< FP8 only
  VForm v_form = VForm::kPlain;     ///< destinations only
  Stores stores = Stores::kCached;  ///< destinations only: advice

  KVTIER_HD int64_t Row(uint32_t head, uint32_t token) const {
    const uint64_t t = uint64_t{first_token} + token;
    if (page_table == nullptr) return static_cast<int64_t>(t) * token_stride + head * head_stride;
    return page_table[t / page_tokens] * page_stride + static_cast<int64_t>(t % page_tokens) * token_stride +
           head * head_stride;
  }
};

}  // namespace kvtier
