#pragma once

#include "kernels/cuda/launch.h"
#include "tiers/cuda/batch_checksum.h"

namespace kvtier::cuda {

/// As the launchers of kernels/cuda/launch.h.
[[nodiscard]] LaunchError LaunchChecksum(const ChecksumBatchArgs& batch, StreamHandle stream);

}  // namespace kvtier::cuda
