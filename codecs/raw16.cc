#include "codecs/raw_codec.h"
#include "codecs/rows.h"
#include "codecs/shape_rules.h"

namespace kvtier {
namespace {

// raw16: one section, K [H][T][Dk] then V [H][T][Dv] in the source dtype (16-bit elements), as given.

bool Supports(const BlockShape& shape) {
  return HasCodecShape(shape) && DTypeBytes(shape.dtype) == 2 && shape.nraw == 0 && shape.nb == 0;
}

}  // namespace

constinit const Codec kRaw16Codec = {.id = CodecId::kRaw16,
                                     .precision = Precision::kBits16,
                                     .name = "raw16",
                                     .planes = 0,
                                     .supports = Supports,
                                     .encode = EncodeRaw,
                                     .decode = DecodeRaw,
                                     .attend = AttendRaw};

}  // namespace kvtier
