#pragma once

#include "kernels/quantize.h"

namespace kvtier {

/// Quantize for all blocks of its launch, on the calling thread, with the widest vectors that the CPU has.
/// The bytes are those of SerialTeam.
void QuantizeSimd(const QuantizeArgs& args);

}  // namespace kvtier
