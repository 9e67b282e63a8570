#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tiers/base/status.h"

namespace kvtier {

/// Few malloc arenas and small retained heaps, so that memory stays near the configured budgets. Before any
/// thread.
void LimitHeap();
/// As many descriptors as the hard limit allows: sessions and arenas take two or three each, and gRPC ends
/// the process when it gets none. Errors: kResourceExhausted, when they are too few to serve at all.
Status RaiseDescriptorLimit();

/// What this machine, or the cgroup that the process is in, lets it use. UINT64_MAX when that cannot be told.
uint64_t MemoryLimitBytes();

/// Random bytes of the system. Errors: kUnavailable.
Result<std::array<std::byte, 16>> RandomId();

/// Whether an NVIDIA device can be seen from here.
bool GpuVisible();

}  // namespace kvtier
