#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "codecs/codec.h"
#include "kernels/source_rows.h"
#include "tests/codecs/encoded_layer.h"

// What the suites over the codec table run on.

namespace kvtier {

inline constexpr uint32_t kSeed = 12345;
inline constexpr const char* kDTypeNames[] = {"?", "fp16", "bf16", "e4m3", "e5m2", "fp32"};
/// Of FP8 sources and destinations.
inline constexpr Fp8Scales kScales = {.k = 0.125f, .v = 0.01f};

/// Every head dimension that engines have, the narrowest and odd ones, K and V alike and not.
inline std::vector<BlockShape> Shapes() {
  std::vector<BlockShape> shapes;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}) {
    const auto add = [&](uint16_t heads, uint16_t k_dim, uint16_t v_dim, uint16_t tokens) {
      shapes.push_back(
          {.layers = 1, .kv_heads = heads, .k_dim = k_dim, .v_dim = v_dim, .tokens = tokens, .dtype = dtype});
    };
    add(2, 128, 128, 128);
    add(3, 64, 64, 64);
    add(1, 80, 80, 37);
    add(2, 96, 192, 18);
    add(1, 192, 96, 7);
    add(2, 16, 256, 4);
    add(1, 256, 48, 126);
    add(5, 48, 16, 1);
  }
  return shapes;
}

/// Boosted channels: none, few, an eighth, a quarter, half, as many as can be named.
inline std::vector<uint32_t> Boosts(uint32_t k_dim) {
  return {0, 4, k_dim / 32 * 4, k_dim / 16 * 4, k_dim / 8 * 4, std::min<uint32_t>(k_dim, 252)};
}

/// Every shape that `codec` supports: each count of raw rows with another boost, where it has them.
inline std::vector<BlockShape> ShapesOf(const Codec& codec) {
  std::vector<BlockShape> supported;
  const std::vector<BlockShape> shapes = Shapes();
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::vector<uint32_t> boosts = Boosts(shapes[i].k_dim);
    for (size_t variant = 0; variant < boosts.size(); ++variant) {
      BlockShape shape = shapes[i];
      shape.nraw = static_cast<uint8_t>((variant + i) % (kMaxRawRows + 1));
      shape.nb = static_cast<uint8_t>(boosts[variant]);
      if (!codec.supports(shape)) shape.nb = 0;
      if (!codec.supports(shape)) shape.nraw = 0;
      if (codec.supports(shape)) supported.push_back(shape);
    }
  }
  std::ranges::sort(supported, {}, [](const BlockShape& s) {
    return std::tuple(s.kv_heads, s.k_dim, s.dtype, s.nraw, s.nb);
  });
  supported.erase(std::unique(supported.begin(), supported.end()), supported.end());
  return supported;
}

/// One variant of each: for sweeps over layouts and destinations.
inline std::vector<BlockShape> FewShapesOf(const Codec& codec) {
  std::vector<BlockShape> few;
  for (BlockShape shape : Shapes()) {
    for (const bool has_extras : {true, false}) {
      shape.nraw = has_extras ? 1 : 0;
      shape.nb = has_extras && codec.precision < Precision::kBits8 ? shape.k_dim / 8 * 4 : 0;
      if (!codec.supports(shape)) continue;
      few.push_back(shape);
      break;
    }
  }
  return few;
}

inline std::string Describe(const BlockShape& s) {
  return "H" + std::to_string(s.kv_heads) + " Dk" + std::to_string(s.k_dim) + " Dv" +
         std::to_string(s.v_dim) + " T" + std::to_string(s.tokens) + " nraw" + std::to_string(s.nraw) +
         " nb" + std::to_string(s.nb) + " " + kDTypeNames[static_cast<int>(s.dtype)];
}

/// Element `index` of `raw`.
inline float ValueOf(const Bytes& raw, size_t index, DType dtype, float scale) {
  float value = 0;
  LoadTile(&raw[index * DTypeBytes(dtype)], dtype, scale, 1, &value);
  return value;
}

/// Numbers around a mean of 2, in the dtype of the shape.
inline Bytes RandomRaw(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  const size_t bytes = DTypeBytes(shape.dtype),
               k_elements = size_t{shape.kv_heads} * shape.tokens * shape.k_dim;
  Bytes raw(RawLayerBytes(shape));
  for (size_t i = 0; i * bytes < raw.size(); ++i) {
    const float value = normal(random) + static_cast<float>(i % 5);
    const float scale = i < k_elements ? kScales.k : kScales.v;
    std::byte* element = &raw[i * bytes];
    switch (shape.dtype) {
      case DType::kBf16:
        Store16(element, Bf16FromFp32(value));
        break;
      case DType::kE4m3:
        *element = static_cast<std::byte>(E4m3FromFp32(value / scale));
        break;
      case DType::kE5m2:
        *element = static_cast<std::byte>(E5m2FromFp32(value / scale));
        break;
      default:
        Store16(element, Fp16FromFp32(value));
    }
  }
  return raw;
}

/// What decoders write: types and forms of V.
inline std::vector<Destination> Destinations() {
  std::vector<Destination> destinations;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2, DType::kFp32})
    for (const VForm form : {VForm::kPlain, VForm::kRotated})
      destinations.push_back({.dtype = dtype, .scales = kScales, .v_form = form});
  return destinations;
}

}  // namespace kvtier
