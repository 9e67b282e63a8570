#pragma once

#include "codecs/codec.h"

// What the rows kv4p, kv42 and kv2p share: one encoder and one decoder, told by `planes` which sections
// exist.

namespace kvtier {

bool SupportsPlaneFamily(const BlockShape& shape);
/// `planes`: what of the boost and the low planes is written. Errors are of both precisions whatever is
/// written.
LayerError EncodePlanes(const BlockShape& shape, uint8_t planes, const LayerSource& source,
                        const LayerParts& out);
void DecodePlanes(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in, const KvLayerView& out);
VForm AttendToPlanes(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in,
                     const AttentionQuery& query, const AttentionPartial& out);

}  // namespace kvtier
