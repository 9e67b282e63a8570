#pragma once

#include "tests/quality/cache.h"
#include "tests/support/blocks.h"

namespace kvtier::quality {

/// One form of a codec.
struct Form {
  const Codec* codec;
  uint16_t tokens;            ///< of a block
  uint8_t nb;                 ///< boosted channels of the plane family
  const Codec* by = nullptr;  ///< the codec that it was in before; null: none
};

/// The block of `form` that begins at `first_token`, all layers; the first token of a sequence is a raw row,
/// and FP8 codecs get what an engine with an FP8 cache would hand over.
Result<OwnedImage> EncodeFixtureBlock(const Form& form, const Fixture& fixture, uint32_t first_token);
/// Decoded to FP16, as an engine reads it, into tokens [first_token, ...) of the layers.
void DecodeInto(const ImageView& image, uint32_t first_token, std::vector<LayerKv>& layers);

}  // namespace kvtier::quality
