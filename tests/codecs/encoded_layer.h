#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "codecs/codec.h"
#include "codecs/sections.h"

namespace kvtier {

using Bytes = std::vector<std::byte>;

/// One encoded layer that owns its parts.
struct EncodedLayer {
  BlockShape shape;
  uint8_t planes = 0;
  std::array<Bytes, kRegions> part;
  LayerError error;
  CodecId codec = CodecId::kNone;

  ConstLayerParts View() const {
    ConstLayerParts parts;
    for (int region = 0; region < kRegions; ++region) parts.part[region] = part[region];
    return parts;
  }
  LayerParts MutableView() {
    LayerParts parts;
    for (int region = 0; region < kRegions; ++region) parts.part[region] = part[region];
    return parts;
  }
};

/// Parts of the right sizes, filled with 0xCD.
inline EncodedLayer UnwrittenLayer(const Codec& codec, const BlockShape& shape) {
  EncodedLayer layer{
      .shape = shape, .planes = EncodedPlanes(codec, shape), .part = {}, .error = {}, .codec = codec.id};
  for (int region = 0; region < kRegions; ++region)
    layer.part[region].assign(PartBytes(codec.id, shape, layer.planes, static_cast<Region>(region)),
                              std::byte{0xCD});
  return layer;
}

inline EncodedLayer EncodeLayer(const Codec& codec, const BlockShape& shape, const Bytes& raw,
                                const Fp8Scales& scales = {}) {
  EncodedLayer layer = UnwrittenLayer(codec, shape);
  layer.error = codec.encode(shape, {.raw = raw, .scales = scales}, layer.MutableView());
  return layer;
}

/// How a destination wants its values.
struct Destination {
  DType dtype = DType::kFp16;
  Fp8Scales scales = {};
  VForm v_form = VForm::kPlain;
};

/// Decodes to K [heads][tokens][k_dim], then V [heads][tokens][v_dim]. One view has one set of strides, so
/// rows are spaced for the wider of the two and packed afterwards.
inline Bytes DecodeLayer(const Codec& codec, const EncodedLayer& layer, const Destination& to) {
  const BlockShape& s = layer.shape;
  const size_t element = DTypeBytes(to.dtype);
  const size_t spaced_row = element * std::max(s.k_dim, s.v_dim);
  const size_t rows = size_t{s.kv_heads} * s.tokens;
  Bytes k(rows * spaced_row), v(rows * spaced_row), packed;
  KvLayerView view;
  view.k = k.data();
  view.v = v.data();
  view.token_stride = static_cast<int64_t>(spaced_row);
  view.head_stride = static_cast<int64_t>(spaced_row * s.tokens);
  view.channel_stride = static_cast<int64_t>(element);
  view.dtype = to.dtype;
  view.scales = to.scales;
  view.v_form = to.v_form;
  codec.decode(s, layer.planes, layer.View(), view);
  for (const auto& [plane, dim] : {std::pair(&k, s.k_dim), std::pair(&v, s.v_dim)}) {
    for (size_t row = 0; row < rows; ++row) {
      const auto start = plane->begin() + static_cast<ptrdiff_t>(row * spaced_row);
      packed.insert(packed.end(), start, start + static_cast<ptrdiff_t>(element * dim));
    }
  }
  return packed;
}
inline Bytes DecodeLayer(const Codec& codec, const EncodedLayer& layer, DType dtype) {
  return DecodeLayer(codec, layer, Destination{.dtype = dtype});
}

/// The sections of an encoded layer one after the other without padding, as in the golden files. Padding
/// must be zero: `padding_is_zero` says.
struct StrippedLayer {
  Bytes sections;
  bool padding_is_zero = true;
};
inline StrippedLayer StripPadding(const EncodedLayer& layer) {
  const SectionBytes b = SectionBytesOf(layer.shape);
  StrippedLayer stripped;
  const auto take = [&](Region region, std::initializer_list<uint64_t> sizes) {
    const Bytes& part = layer.part[static_cast<int>(region)];
    size_t at = 0;
    for (const uint64_t bytes : sizes) {
      stripped.sections.insert(stripped.sections.end(), part.begin() + at, part.begin() + at + bytes);
      for (size_t i = at + bytes; i < at + AlignSection(bytes); ++i)
        stripped.padding_is_zero &= part.at(i) == std::byte{0};
      at += AlignSection(bytes);
    }
  };
  if (layer.codec == CodecId::kKv8) {
    const Kv8SectionBytes kv8 = Kv8SectionBytesOf(layer.shape);
    take(Region::kBase, {kv8.k_ranges, kv8.v_scales, kv8.raw_rows, kv8.k_codes, kv8.v_codes});
    return stripped;
  }
  take(Region::kBase, {b.k_ranges, b.v_scales, b.raw_rows, b.k_high, b.v_high});
  if (layer.planes & kPlaneKLow) take(Region::kKTail, {b.k_low});
  if (layer.planes & kPlaneVLow) take(Region::kVTail, {b.v_low});
  if (layer.planes & kPlaneBoost) take(Region::kBoost, {b.boost});
  return stripped;
}

/// A plane family layer in a lower rung, by leaving parts out and gathering the boost: what demotion does.
inline EncodedLayer CutLayer(const EncodedLayer& from, const Codec& to) {
  EncodedLayer cut = UnwrittenLayer(to, from.shape);
  cut.error = from.error;
  for (int region = 0; region < kRegions; ++region) {
    if (cut.part[region].empty()) continue;
    if (static_cast<Region>(region) == Region::kBoost && from.part[region].empty()) {
      GatherBoost(from.shape, from.View(), cut.part[region]);
    } else {
      cut.part[region] = from.part[region];
    }
  }
  return cut;
}

}  // namespace kvtier
