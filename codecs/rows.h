#pragma once

#include "codecs/codec.h"

// The rows of the codec table, one per file of the same name. Only table.cc includes this.

namespace kvtier {

extern const Codec kRaw16Codec;

}  // namespace kvtier
