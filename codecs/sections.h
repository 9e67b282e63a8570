#pragma once

#include "codecs/image_layout.h"
#include "kernels/section_bytes.h"

// Where the numbered sections of codecs/FORMAT.md lie inside a layer's parts.

namespace kvtier {

static_assert(kSectionAlign == kImageAlign);

}  // namespace kvtier
