#pragma once

#include <memory>

#include "tiers/cold_index.h"
#include "tiers/cold_segments.h"

namespace kvtier {

/// Opens the index; one that does not open or is damaged (`rebuilt`) is moved aside as `folder`.broken-N (the
/// newest few are kept) and a new one is made, which the scan then fills. Errors: kResourceExhausted,
/// kUnavailable (also a new one does not open).
Result<std::unique_ptr<ColdIndex>> OpenOrRebuildIndex(const ColdIndex::Options& options, bool& rebuilt);
/// Moves the index's folder aside. The index must be closed.
Status MoveIndexAside(const std::string& folder);

/// Brings segments and index together at start: drops entries whose record cannot be there, finds committed
/// or finished records that the index does not know, and adds them to it. `index` is replaced when reading it
/// shows damage. Fills everything of ColdRecovery but the models.
Result<ColdRecovery> RecoverRecords(ColdSegments& segments, std::unique_ptr<ColdIndex>& index,
                                    const ColdIndex::Options& index_options, BlockIo& io);

/// Takes out blocks without a model among `recovery.models`, and counts them. They can never be read, but
/// their records stay: the model may be put back by hand, and else the segment is recycled like any other.
void KeepBlocksOfKnownModels(ColdRecovery& recovery);

/// Whether a record takes the place of another of the same part of the same block. `base` is the block's, if
/// it has one: a newer tail never takes the place of one that belongs to it.
bool Supersedes(const ColdRecord& record, const ColdRecord& other, const ColdRecord* base);
/// Fills out.blocks: each base with the tails of its own encoding. `records` has each part of a block once.
/// Returns the tails that have no base, counted.
std::vector<ColdRecord> JoinTails(std::vector<ColdRecord> records, ColdRecovery& out);

}  // namespace kvtier
