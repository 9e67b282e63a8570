#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "codecs/codec.h"

namespace kvtier {

inline constexpr uint64_t kImageHeaderBytes = 192;
inline constexpr uint64_t kLayerEntryBytes = 32;
inline constexpr uint64_t kImageAlign = 64;
inline constexpr uint32_t kImageMagic = 0x3154564B;  // "KVT1" little endian
inline constexpr uint16_t kImageVersion = 1;
inline constexpr uint32_t kImageFlagRotatedV = 1;
inline constexpr uint16_t kMaxLayers = 1024;
inline constexpr uint64_t kMaxBlockBytes = uint64_t{64} << 20;

/// Block image header, little endian, exactly as on every medium (codecs/FORMAT.md).
struct ImageHeader {
  uint32_t magic;
  uint16_t version;
  uint8_t codec;
  uint8_t dtype;
  uint32_t flags;
  uint16_t tokens;
  uint16_t layers;
  uint16_t kv_heads;
  uint16_t k_dim;
  uint16_t v_dim;
  uint8_t nraw;
  uint8_t nb;
  uint64_t first_position;
  uint64_t content_generation;
  std::array<std::byte, 32> key;
  std::array<std::byte, 32> name_space;
  uint64_t image_bytes;
  uint64_t base_bytes;
  std::array<std::byte, 68> zero;
  uint32_t header_crc;
};
static_assert(sizeof(ImageHeader) == kImageHeaderBytes);

struct LayerEntry {
  uint8_t planes;
  std::array<uint8_t, 3> zero0;
  std::array<uint32_t, kRegions> crc;  ///< crc32c of the layer's part in each region; absent: 0
  std::array<uint16_t, 4> error;       ///< fp16: K int4, K int2, V int4, V int2
  uint32_t zero1;
};
static_assert(sizeof(LayerEntry) == kLayerEntryBytes);

/// Where each layer part of an image lies. Derived from shape and planes alone, never stored.
struct ImageLayout {
  struct Part {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<std::array<Part, kRegions>> layers;
  uint64_t base_bytes = 0;   ///< base region with padding
  uint64_t image_bytes = 0;  ///< header to end
};

/// `planes` has one value per layer.
ImageLayout ComputeImageLayout(CodecId codec, const BlockShape& shape, std::span<const uint8_t> planes);
/// Image size when every layer is encoded (none raw): the slot class of (model, codec).
uint64_t PlainImageBytes(const Codec& codec, const BlockShape& shape);

}  // namespace kvtier
