#pragma once

#include "codecs/codec.h"

// What the rows raw16 and raw8 share: the layer as the engine gave it.

namespace kvtier {

LayerError EncodeRaw(const BlockShape& shape, const LayerSource& source, const LayerParts& out);
void DecodeRaw(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in, const KvLayerView& out);
VForm AttendRaw(const BlockShape& shape, uint8_t planes, const ConstLayerParts& in,
                const AttentionQuery& query, const AttentionPartial& out);

}  // namespace kvtier
