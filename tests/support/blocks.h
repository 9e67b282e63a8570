#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kernels/fp8.h"
#include "kernels/numerics.h"
#include "tiers/image.h"

namespace kvtier {

/// A small block of the plane family's usual form: half of the K channels boosted, one raw row.
inline BlockShape SmallShape(uint16_t tokens = 64) {
  return {.layers = 3,
          .kv_heads = 2,
          .k_dim = 64,
          .v_dim = 64,
          .tokens = tokens,
          .dtype = DType::kFp16,
          .nraw = 1,
          .nb = 32};
}

/// The same in a type that `codec` takes.
inline BlockShape SmallShapeFor(const Codec& codec, uint16_t tokens = 64) {
  BlockShape shape = SmallShape(tokens);
  if (codec.id == CodecId::kRaw8) shape.dtype = DType::kE4m3;
  return shape;
}

/// An identity that differs in every field for every `number`.
inline BlockIdentity MakeIdentity(uint32_t number, BlockShape shape = SmallShape()) {
  BlockIdentity identity;
  std::mt19937 rng(number);
  for (std::byte& b : identity.key.bytes) b = static_cast<std::byte>(rng());
  for (std::byte& b : identity.name_space.bytes) b = static_cast<std::byte>(rng());
  identity.first_position = uint64_t{number} * shape.tokens;
  identity.shape = shape;
  return identity;
}

/// Normally distributed values / 0.25 in FP8, all layers of a block.
inline std::vector<std::byte> RandomFp8(const BlockShape& shape, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<std::byte> raw(RawBlockBytes(shape));
  for (std::byte& element : raw) {
    const float value = normal(rng);
    element = static_cast<std::byte>(shape.dtype == DType::kE4m3 ? E4m3FromFp32(value) : E5m2FromFp32(value));
  }
  return raw;
}

/// Normally distributed values in the type of the shape (FP8 as above), all layers of a block.
inline std::vector<std::byte> RandomRaw(const BlockShape& shape, uint32_t seed) {
  if (IsFp8(shape.dtype)) return RandomFp8(shape, seed);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> raw(RawBlockBytes(shape));
  for (size_t at = 0; at < raw.size(); at += 2) {
    const float value = normal(rng);
    Store16(raw.data() + at, shape.dtype == DType::kBf16 ? Bf16FromFp32(value) : Fp16FromFp32(value));
  }
  return raw;
}

/// An image in memory of its own, aligned as slots are.
struct OwnedImage {
  AlignedBuffer memory;
  std::span<std::byte> bytes;
};

/// `raw` encoded; the status of EncodeImage where that failed.
inline Result<OwnedImage> EncodeOwned(const Codec& codec, const BlockIdentity& identity,
                                      std::span<const std::byte> raw, LayerCrew* crew = nullptr,
                                      std::span<const Fp8Scales> scales = {}) {
  OwnedImage image;
  AlignedBuffer tile;
  KVTIER_ASSIGN(const std::span<std::byte> out,
                image.memory.Reserve(RawBlockBytes(identity.shape) + (1 << 20)));
  BuiltImage built = EncodeImage(codec, identity, raw, out, tile, crew, scales);
  KVTIER_TRY(built.status);
  image.bytes = out.first(built.image_bytes);
  return image;
}

/// `source` requantized; the status of ParseImage or RequantizeImage where that failed.
inline Result<OwnedImage> RequantizeOwned(std::span<const std::byte> source, const Codec& codec,
                                          const BlockIdentity& identity, LayerCrew* crew = nullptr,
                                          std::span<const Fp8Scales> scales = {}) {
  OwnedImage image;
  AlignedBuffer tile;
  KVTIER_ASSIGN(const ImageView view, ParseImage(source));
  KVTIER_ASSIGN(const std::span<std::byte> out,
                image.memory.Reserve(RawBlockBytes(identity.shape) + (1 << 20)));
  BuiltImage built = RequantizeImage(view, codec, identity, out, tile, crew, scales);
  KVTIER_TRY(built.status);
  image.bytes = out.first(built.image_bytes);
  return image;
}

inline std::vector<std::byte> CopyOf(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace kvtier
