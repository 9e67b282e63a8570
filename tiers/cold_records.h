#pragma once

#include <span>

#include "tiers/base/aligned_buffer.h"
#include "tiers/cold_segments.h"

namespace kvtier {

/// The header of a live record of `image`, a whole one (or a whole tail), at `place`.
RecordHeader LiveRecordHeader(const StoreUuid& uuid, const Place& place, std::span<const std::byte> image,
                              const RecordMeta& meta);

/// The image or tail in the bytes of a whole record, when it is live and the one that belongs at `place`.
/// Errors: kDataLoss, kUnimplemented (a newer version).
Result<std::span<const std::byte>> ImageOfRecord(const StoreUuid& uuid, const Place& place,
                                                 std::span<const std::byte> bytes);

/// Syncs the data of every segment in which `records` stand, each once, all at once. Errors: the first one;
/// kStale when a segment is in another use by now.
Status SyncSegmentsOf(std::span<const ColdRecord> records, ColdSegments& segments, BlockIo& io);

/// Overwrites the first block of each record with a dead header, and syncs: no scan takes it for a block
/// again. Records whose segment was recycled are dead already. Tries all; returns the first error.
Status MarkDead(std::span<const ColdRecord> records, ColdSegments& segments, BlockIo& io);

}  // namespace kvtier
