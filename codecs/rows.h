#pragma once

#include "codecs/codec.h"

// The rows of the codec table, one per file of the same name. Only table.cc includes this.

namespace kvtier {

extern const Codec kRaw16Codec;
extern const Codec kRaw8Codec;
extern const Codec kKv8Codec;
extern const Codec kKv4pCodec;
extern const Codec kKv42Codec;
extern const Codec kKv2pCodec;

}  // namespace kvtier
