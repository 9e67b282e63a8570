#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/layout.h"

namespace kvtier {

/// Ids of the image header, never reused.
enum class CodecId : uint8_t { kNone = 0, kRaw16 = 1, kRaw8 = 2, kKv8 = 3, kKv4p = 4, kKv42 = 5, kKv2p = 6 };

/// The codec that keeps a block as the engine gave it.
constexpr CodecId RawCodecOf(DType dtype) {
  return DTypeBytes(dtype) == 1 ? CodecId::kRaw8 : CodecId::kRaw16;
}
constexpr bool IsRawCodec(CodecId codec) {
  return codec == CodecId::kRaw16 || codec == CodecId::kRaw8;
}

/// How exact a block is, ascending. A floor forbids everything below it.
enum class Precision : uint8_t { kNone = 0, kInt2 = 1, kK4V2 = 2, kInt4 = 3, kBits8 = 4, kBits16 = 5 };

/// That of the engine's own numbers.
constexpr Precision MostExact(DType dtype) {
  return DTypeBytes(dtype) == 1 ? Precision::kBits8 : Precision::kBits16;
}

/// The four regions of an image, in order. A layer part is what one layer has in one region.
enum class Region : uint8_t { kBase = 0, kBoost = 1, kKTail = 2, kVTail = 3 };
inline constexpr int kRegions = 4;

/// Bits of a layer table entry's `planes`.
inline constexpr uint8_t kPlaneBoost = 1, kPlaneKLow = 2, kPlaneVLow = 4, kPlaneRaw = 128;

/// The bytes of one layer's parts, each 64-byte aligned inside the image, padding included; empty where
/// absent.
struct LayerParts {
  std::span<std::byte> part[kRegions];
};
struct ConstLayerParts {
  std::span<const std::byte> part[kRegions];
};

/// One layer as RawLayerBytes lays it out, in shape.dtype.
struct LayerSource {
  std::span<const std::byte> raw;
  Fp8Scales scales = {};
};

/// Relative rms error of a layer, sqrt(sum (x - x^)^2 / sum x^2), 0/0 = 0.
/// Codecs with one rung (kv8) state theirs in k_int4 and v_int4.
struct LayerError {
  float k_int4 = 0, k_int2 = 0, v_int4 = 0, v_int2 = 0;
};

/// One way to store a block: a row of the table in table.cc. Functions work on one layer, are pure, total on
/// checked preconditions (sizes from `PartBytes`), safe on arbitrary part bytes, callable from any thread,
/// and give the same bytes on every machine.
struct Codec {
  CodecId id;
  Precision precision;
  std::string_view name;
  /// Planes of a layer that is encoded (not raw) in this codec.
  uint8_t planes;
  bool (*supports)(const BlockShape& shape);
  /// Encodes one layer, finite (see LayerIsFinite). Writes every byte of the parts, padding included (zero).
  LayerError (*encode)(const BlockShape& shape, const LayerSource& source, const LayerParts& out);
  /// Decodes tokens [0, shape.tokens) of one layer into `out` (any strides).
  /// `in` holds the parts that `planes` names; arbitrary bytes decode to arbitrary values, never out of
  /// bounds.
  void (*decode)(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in, const KvLayerView& out);
  /// Decode attention over tokens [0, shape.tokens) of one layer, on the bytes as they are stored; parts as
  /// for decode. Writes every field of `out`; answers which form out.o is in. Not bit-equal between machines:
  /// codecs/FORMAT.md, "Attention", has the bounds.
  VForm (*attend)(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in,
                  const AttentionQuery& query, const AttentionPartial& out);
};

/// All codecs of this build, ordered by id.
std::span<const Codec* const> AllCodecs();
/// Null where the id is not in this build.
const Codec* FindCodec(CodecId id);
const Codec* FindCodec(std::string_view name);

/// Planes of a layer that `codec` encodes in this shape: codec.planes, without boost where shape.nb is 0.
uint8_t EncodedPlanes(const Codec& codec, const BlockShape& shape);

/// Bytes of one layer's part in `region`, padding included (a multiple of 64), for a layer with these planes.
/// `codec` matters only for which family lays out the base; a raw layer (kPlaneRaw) has a base only.
uint64_t PartBytes(CodecId codec, const BlockShape& shape, uint8_t planes, Region region);

/// Whether the layer can be encoded faithfully (no NaN or infinity, magnitudes at most 65504).
bool LayerIsFinite(const BlockShape& shape, const LayerSource& source);

/// Raw layers (kPlaneRaw), raw16 and raw8: source dtype to `out`, converting where they differ. An FP8 source
/// has the scales of `out`. fp16 destinations end at its limits; NaN stays NaN.
void CopyRawLayer(const BlockShape& shape, std::span<const std::byte> raw, const KvLayerView& out);
/// The reverse: gathers a strided layer into the contiguous form, same dtype.
void GatherRawLayer(const BlockShape& shape, const KvLayerView& in, std::span<std::byte> raw);

/// Attention over raw layers, raw16 and raw8. o is plain.
VForm AttendRawLayer(const BlockShape& shape, std::span<const std::byte> raw, const AttentionQuery& query,
                     const AttentionPartial& out);

/// Demotion inside the plane family: fills the boost part of an int2 layer from the base and K tail of an
/// int4 or k4v2 layer. Everything else of the lower rung is the same bytes.
void GatherBoost(const BlockShape& shape, const ConstLayerParts& in, std::span<std::byte> boost);

/// Whether an image in `from` can become `to` by leaving regions out (equal counts as yes).
bool CanCut(CodecId from, CodecId to);

}  // namespace kvtier
