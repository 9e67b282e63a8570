#pragma once

#include "codecs/image_layout.h"
#include "tiers/image.h"

namespace kvtier {

/// The header of an image in `codec` of a block, without sizes and checksum. `stored` is the shape that it
/// records: see StoredShape.
ImageHeader HeaderOf(const BlockIdentity& identity, const BlockShape& stored, CodecId codec);
/// What a header says of its block, unchecked.
BlockIdentity IdentityOf(const ImageHeader& header);

}  // namespace kvtier
