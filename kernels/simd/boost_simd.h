#pragma once

#include "kernels/boost.h"

namespace kvtier {

/// GatherBoostBits for all blocks of its launch, on the calling thread, with the widest vectors that the CPU
/// has. The bytes are those of SerialTeam.
void GatherBoostSimd(const GatherBoostArgs& args);

}  // namespace kvtier
