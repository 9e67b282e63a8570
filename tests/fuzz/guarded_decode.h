#pragma once

#include "codecs/codec.h"
#include "kernels/layout.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {

/// Where a decoder writes: one of the layouts of engine_layouts.h, by number.
struct DecodeTarget {
  uint32_t layout = 0;
  DType dtype = DType::kFp16;
  Fp8Scales scales = {};
  VForm v_form = VForm::kPlain;
  Stores stores = Stores::kCached;
  GuardedEnd end = GuardedEnd::kBack;
};

/// Decodes one layer once per SIMD level, parts and destination each in memory that begins or ends at a page
/// that nobody may touch. Dies when a decoder leaves its memory, writes beside the elements of its view, or
/// gives other bytes than the portable one. Leaves the widest level set. Not thread-safe: levels are global.
void DecodeGuarded(const Codec& codec, const BlockShape& shape, uint8_t planes, const ConstLayerParts& parts,
                   const DecodeTarget& target);

}  // namespace kvtier
