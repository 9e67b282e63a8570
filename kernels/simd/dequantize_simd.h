#pragma once

#include "kernels/dequantize.h"

namespace kvtier {

/// Dequantize for all blocks of its launch, on the calling thread, with the widest vectors that the CPU has.
/// The bytes are those of SerialTeam.
void DequantizeSimd(const DequantizeArgs& args);

}  // namespace kvtier
