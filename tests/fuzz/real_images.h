#pragma once

#include <cstddef>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier {

/// Small images of a block of a real model, in every codec that can hold it, each with and without a layer
/// that stays raw. Errors: those of the fixture's files.
Result<std::vector<std::vector<std::byte>>> RealImages();

}  // namespace kvtier
