#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/numerics.h"

namespace kvtier::internal {

/// What is stored of a K channel, as fp16.
struct KRange {
  uint16_t scale_bits, minimum_bits;
};

/// The range of a channel whose values lie in [least, greatest], cut into `steps`.
KVTIER_HD inline KRange KRangeOf(float least, float greatest, float steps) {
  // A zero is stored as +0, whichever zero the comparisons met.
  const uint16_t minimum_bits = Fp16FromFp32(least);
  return {.scale_bits = greatest > least ? Fp16FromFp32((greatest - least) / steps) : uint16_t{0},
          .minimum_bits = minimum_bits == 0x8000 ? uint16_t{0} : minimum_bits};
}

}  // namespace kvtier::internal
