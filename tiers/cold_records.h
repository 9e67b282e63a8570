#pragma once

#include <span>

#include "tiers/base/aligned_buffer.h"
#include "tiers/cold_segments.h"

namespace kvtier {

/// Syncs the data of every segment in which `records` stand, each once, all at once. Errors: the first one;
/// kStale when a segment is in another use by now.
Status SyncSegmentsOf(std::span<const ColdRecord> records, ColdSegments& segments, BlockIo& io);

/// Overwrites the first block of each record with a dead header, and syncs: no scan takes it for a block
/// again. Records whose segment was recycled are dead already. Tries all; returns the first error.
Status MarkDead(std::span<const ColdRecord> records, ColdSegments& segments, BlockIo& io);

}  // namespace kvtier
