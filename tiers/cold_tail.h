#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiers/cold_store.h"
#include "tiers/image.h"
#include "tiers/place.h"

namespace kvtier {

// The K tail and the V tail of a block as records of their own: the planes that a cold tier keeps beside an
// int2 image while there is room, and that make it k4v2, or int4 again. Layout: tiers/FORMAT.md.

inline constexpr uint32_t kTailMagic = 0x314C544B;  // "KTL1" little endian

/// One layer of a tail's table.
struct TailEntry {
  uint8_t planes;  ///< kPlaneKLow or kPlaneVLow; kPlaneRaw: the layer is raw and has no part here
  uint8_t zero;
  uint16_t error;     ///< fp16: relative rms error of K, or of V, with these planes
  uint32_t part_crc;  ///< crc32c of the layer's part; a raw layer: 0
  uint32_t base_crc;  ///< crc32c of the layer's base part: these planes complete that one only
};
static_assert(sizeof(TailEntry) == 12);

/// A parsed tail: a checked view of bytes that someone else owns.
struct TailView {
  ColdPart part = ColdPart::kKTail;
  BlockIdentity identity;
  std::vector<TailEntry> table;
  std::vector<ImageLayout::Part> parts;  ///< by layer
  std::span<const std::byte> bytes;      ///< exactly the tail

  std::span<const std::byte> Part(size_t layer) const {
    return bytes.subspan(parts[layer].offset, parts[layer].bytes);
  }
  float Error() const;  ///< rms over layers
};

/// The rung that a base with all parts up to `part` is.
const Codec& RungOf(ColdPart part);
/// Whether the image has the planes of `part` in every layer that is not raw, and has such a layer.
bool HasTail(const ImageView& image, ColdPart part);
/// Bytes of a tail when no layer is raw: it never has more.
uint64_t PlainTailBytes(const BlockShape& shape, ColdPart part);
/// The record of a tail beside `base`: place.part says which. One that is given up needs no bytes and error.
ColdRecord TailRecord(const ColdRecord& base, const Place& place, uint64_t tail_bytes = 0, float error = 0);

/// Writes the tail of `image` to `out` (64-byte aligned, not overlapping). Precondition: HasTail. Errors:
/// kDataLoss (the planes in the image are damaged), kOutOfRange (`out` too small).
BuiltImage WriteTail(const ImageView& image, ColdPart part, std::span<std::byte> out);

/// Checks header, table, sizes and their crc; not the planes. Errors: as ParseImage.
Result<TailView> ParseTail(std::span<const std::byte> bytes);
/// Planes of one layer against their crc. Errors: kDataLoss.
Status VerifyTailLayer(const TailView& tail, size_t layer);
Status VerifyTail(const TailView& tail);
/// Whether the tail was cut from the same encoding as this int2 image. Errors: kDataLoss.
Status MatchTail(const TailView& tail, const ImageView& base);

/// Crc32c over the base crcs of the layers of an image or a tail: the same for all records of one encoding.
/// `payload` was parsed before.
uint32_t BindingOf(std::span<const std::byte> payload);

/// Puts planes back beside the base that they complete: the very image that they were cut from.
struct JoinedImage {
  BuiltImage image;
  bool k_damaged = false, v_damaged = false;  ///< with kDataLoss: planes that did not check out
};
/// Writes to `out` (64-byte aligned, not overlapping). Precondition: the tails match the base. `v_tail` may
/// be null. Verifies every part; the sources hold still. Errors: kDataLoss (base or tails), kOutOfRange.
JoinedImage JoinImage(const ImageView& base, const TailView& k_tail, const TailView* v_tail,
                      std::span<std::byte> out, LayerCrew* crew = nullptr);

}  // namespace kvtier
