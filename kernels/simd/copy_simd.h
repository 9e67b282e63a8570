#pragma once

#include <cstddef>

#include "kernels/layout.h"

namespace kvtier {

/// memcpy; streaming goes around the cache, and is worth it for what is not read soon. What was streamed is
/// visible to other threads after FinishStores.
void CopySimd(std::byte* target, const std::byte* source, size_t bytes, Stores stores);
void FinishStores(Stores stores);

}  // namespace kvtier
