#pragma once

#include <span>

#include "tiers/image.h"

namespace kvtier {

/// What an encoder found in a layer whose parts it has written.
struct EncodedLayer {
  uint8_t planes = 0;
  LayerError error = {};  ///< of a raw layer: none
};
/// Header, table and checksums of an image whose parts stand in `out` (64-byte aligned) already, where
/// ComputeImageLayout says for these planes. Errors: kOutOfRange (`out` too small).
BuiltImage SealImage(const Codec& codec, const BlockIdentity& identity, std::span<const EncodedLayer> layers,
                     std::span<std::byte> out);

}  // namespace kvtier
