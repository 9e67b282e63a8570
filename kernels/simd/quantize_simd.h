#pragma once

#include "kernels/quantize.h"

namespace kvtier {

struct LayerErrors {
  RowErrors k, v;
};

/// Quantize for all blocks of its launch, on the calling thread, with the widest vectors that the CPU has.
/// The bytes are those of SerialTeam. Returns the sums over all rows, as codecs/FORMAT.md ("Stated errors")
/// has them; the fields of `args` that say where and how errors are measured are not looked at.
LayerErrors QuantizeSimd(const QuantizeArgs& args);

}  // namespace kvtier
