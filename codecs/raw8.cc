#include "codecs/raw_codec.h"
#include "codecs/rows.h"
#include "codecs/shape_rules.h"
#include "kernels/fp8.h"

namespace kvtier {
namespace {

// raw8: one section, K [H][T][Dk] then V [H][T][Dv] in the source dtype (FP8), as given.

bool Supports(const BlockShape& shape) {
  return HasCodecShape(shape) && IsFp8(shape.dtype) && shape.nraw == 0 && shape.nb == 0;
}

}  // namespace

constinit const Codec kRaw8Codec = {.id = CodecId::kRaw8,
                                    .precision = Precision::kBits8,
                                    .name = "raw8",
                                    .planes = 0,
                                    .supports = Supports,
                                    .encode = EncodeRaw,
                                    .decode = DecodeRaw,
                                    .attend = AttendRaw};

}  // namespace kvtier
