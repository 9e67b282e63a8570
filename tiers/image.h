#pragma once

#include <span>
#include <vector>

#include "codecs/image_layout.h"
#include "tiers/base/aligned_buffer.h"
#include "tiers/base/ids.h"
#include "tiers/base/status.h"
#include "tiers/crc32c.h"

namespace kvtier {

/// What names a block and says its shape: all that an image needs besides K and V.
/// `shape.nraw` and `shape.nb` are those that the plane family uses for this block, whatever codec it has
/// now.
struct BlockIdentity {
  Key key;
  NamespaceDigest name_space;
  uint64_t first_position = 0;
  BlockShape shape;

  friend bool operator==(const BlockIdentity&, const BlockIdentity&) = default;
};

/// The codecs whose images differ by whole regions only.
constexpr bool IsPlaneFamily(CodecId codec) {
  return codec == CodecId::kKv4p || codec == CodecId::kKv42 || codec == CodecId::kKv2p;
}

/// The shape as an image in `codec` records it: nraw and nb are 0 where the codec has none.
BlockShape StoredShape(CodecId codec, BlockShape shape);

/// A parsed image: a checked view of bytes that someone else owns. The table is a private copy, so that bytes
/// that change later cannot change sizes.
struct ImageView {
  const Codec* codec = nullptr;
  BlockIdentity identity;  ///< as recorded: see StoredShape
  std::vector<LayerEntry> table;
  ImageLayout layout;
  std::span<const std::byte> bytes;  ///< exactly image_bytes

  ConstLayerParts Parts(uint16_t layer) const;
  /// Precision of the least exact layer.
  Precision precision() const { return codec->precision; }
  /// Stored relative rms errors of one layer at this image's rung (0 for a raw layer).
  float KError(uint16_t layer) const;
  float VError(uint16_t layer) const;
};

/// Checks header, table, padding between, sizes and header crc; not the parts. Any thread.
/// Errors: kUnimplemented for an unknown version, codec, dtype or flag; kDataLoss for everything else that is
/// wrong.
Result<ImageView> ParseImage(std::span<const std::byte> bytes);
/// Whether the image is the block that it is taken for. Errors: kDataLoss, naming the first field that
/// differs.
Status MatchIdentity(const ImageView& image, const BlockIdentity& expected);
/// Parts of one layer against their crcs. Errors: kDataLoss.
Status VerifyLayer(const ImageView& image, uint16_t layer);
/// Every layer.
Status VerifyImage(const ImageView& image);

class LayerCrew;

/// What became of an image being built.
struct [[nodiscard]] BuiltImage {
  Status status;
  uint64_t image_bytes = 0;  ///< its size; with kOutOfRange the size that `out` would have to have
};

/// Writes an image of `raw` (layer after layer as RawLayerBytes) to `out` (64-byte aligned); layers that
/// cannot be encoded stay raw. `raw` may change meanwhile: what is checked is what is kept, since every byte
/// is read into `out` (raw16, raw8) or a private layer in `tile` (the others) before anything looks at it. A
/// crew shares the layers of a large block; the bytes are the same. `scales` are those of an FP8 source by
/// layer; empty: 1. Errors: kOutOfRange (`out` too small), kInvalidArgument (wrong size of `raw`; a source
/// that changed under the encoder), kUnimplemented (the codec cannot hold the shape), kResourceExhausted (no
/// memory for `tile`).
BuiltImage EncodeImage(const Codec& codec, const BlockIdentity& identity, std::span<const std::byte> raw,
                       std::span<std::byte> out, AlignedBuffer& tile, LayerCrew* crew = nullptr,
                       std::span<const Fp8Scales> scales = {});

/// Whether RequantizeImage can turn an image in `from` into `to`: a copy, a cut inside the plane family, or
/// an encoding of what the engine gave. A quantized block is not decoded for it, but for kv8, whose steps are
/// so much finer than those of the plane family that its values stand for the engine's.
bool CanRequantize(CodecId from, const Codec& to, const BlockShape& shape);

/// Writes `source` requantized to `codec` into `out` (64-byte aligned, not overlapping). `identity` is the
/// block's own, with the nraw and nb that an encoding uses. kv8 is decoded into private layers in `tile`.
/// Verifies every part of the source that
/// it uses; the source holds still. Errors: kDataLoss (source), kOutOfRange (`out` too small),
/// kFailedPrecondition (not CanRequantize), kResourceExhausted (no memory for `tile`).
BuiltImage RequantizeImage(const ImageView& source, const Codec& codec, const BlockIdentity& identity,
                           std::span<std::byte> out, AlignedBuffer& tile, LayerCrew* crew = nullptr,
                           std::span<const Fp8Scales> scales = {});

}  // namespace kvtier
