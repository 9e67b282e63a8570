#pragma once

#include <span>
#include <vector>

#include "codecs/image_layout.h"
#include "tiers/base/ids.h"
#include "tiers/base/status.h"
#include "tiers/crc32c.h"

namespace kvtier {

/// What names a block and says its shape: all that an image needs besides K and V.
struct BlockIdentity {
  Key key;
  NamespaceDigest name_space;
  uint64_t first_position = 0;
  BlockShape shape;

  friend bool operator==(const BlockIdentity&, const BlockIdentity&) = default;
};

/// A parsed image: a checked view of bytes that someone else owns. The table is a private copy, so that bytes that change
/// later cannot change sizes.
struct ImageView {
  const Codec* codec = nullptr;
  BlockIdentity identity;
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

/// Checks header, table, sizes and header crc; not the parts. Any thread.
/// Errors: kUnimplemented for an unknown version, codec, dtype or flag; kDataLoss for everything else that is wrong.
Result<ImageView> ParseImage(std::span<const std::byte> bytes);
/// Parts of one layer against their crcs, and the table's padding. Errors: kDataLoss.
Status VerifyLayer(const ImageView& image, uint16_t layer);
/// Every layer.
Status VerifyImage(const ImageView& image);

/// Image size when `identity` is stored in `codec` from `raw` (layers that cannot be encoded stay raw and are larger).
uint64_t EncodedImageBytes(const Codec& codec, const BlockShape& shape, std::span<const std::byte> raw);

/// Writes a whole image of `raw` (layer after layer as RawLayerBytes) to `out` (64-byte aligned).
/// Reads each byte of `raw` once where codec is raw16 (then `raw` may change under it: what is checked is what is kept).
/// Returns the image size. Errors: kOutOfRange when `out` is too small (message names the bytes needed).
Result<uint64_t> EncodeImage(const Codec& codec, const BlockIdentity& identity, std::span<const std::byte> raw,
                             std::span<std::byte> out);

/// Writes `source` requantized to `codec` into `out`: a cut inside the plane family, an encoding from raw16, or a copy.
/// Verifies every part of the source that it uses. Errors: kDataLoss (source), kOutOfRange (out too small),
/// kFailedPrecondition (would need to decode a quantized block).
Result<uint64_t> RequantizeImage(const ImageView& source, const Codec& codec, std::span<std::byte> out);
/// Size that RequantizeImage needs. Same errors.
Result<uint64_t> RequantizedBytes(const ImageView& source, const Codec& codec);

}  // namespace kvtier
