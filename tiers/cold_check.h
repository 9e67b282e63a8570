#pragma once

#include <string>
#include <vector>

#include "tiers/cold_store.h"

namespace kvtier {

inline constexpr size_t kMaxListedDamage = 1024;

/// What stands in a cold store's folder, and what of it is damaged. Counts are of records unless said.
struct ColdCheck {
  uint64_t segments = 0;          ///< files
  uint64_t damaged_headers = 0;   ///< of segments: what stands behind is not looked at
  uint64_t truncated_files = 0;   ///< segments shorter than they were made
  uint64_t foreign_files = 0;     ///< segments of another store
  uint64_t leftovers = 0;         ///< half-made files, indexes that were moved aside
  uint64_t live = 0;              ///< sound in every byte
  uint64_t damaged = 0;           ///< the header is sound, the image is not
  uint64_t unread_bytes = 0;      ///< the device failed
  bool index_damaged = false;     ///< it is missing, does not open or cannot be read
  bool index_complete = false;    ///< the store was closed: the index claims to cover every record
  uint64_t index_entries = 0;     ///< sound ones
  uint64_t bad_entries = 0;       ///< entries with a wrong checksum
  uint64_t dangling_entries = 0;  ///< entries without a sound record at their place
  uint64_t unindexed =
      0;  ///< live, newest of their block, and in no entry: after a kill the next start adds them
  uint64_t models = 0;
  uint64_t damaged_models = 0;      ///< files
  uint64_t orphans = 0;             ///< live, but of a model that is not there
  std::vector<std::string> damage;  ///< one line each; the first kMaxListedDamage

  /// Nothing is damaged or lost. Leftovers, and records that a killed daemon had not indexed, are no damage.
  bool sound() const;
};

/// Reads everything in the folder of a store that no daemon uses, and changes nothing. The FORMAT file must
/// be whole. Errors: kNotFound, kFailedPrecondition (a daemon uses it, another version), kDataLoss (FORMAT),
/// kPermissionDenied, kUnavailable.
Result<ColdCheck> CheckColdStore(const std::string& path);

struct ColdRepair {
  uint64_t blocks = 0;            ///< that are there afterwards
  uint64_t marked_dead = 0;       ///< damaged records and those of models that are not there
  uint64_t headers_repaired = 0;  ///< of segments, from the index
  uint64_t headers_lost = 0;      ///< segments that are empty now
  uint64_t removed_files = 0;     ///< leftovers, and damaged files of models
};

/// Builds the index anew from the segments, and FORMAT where it is damaged (RestoreColdFormat); marks records
/// dead that cannot be read, gives truncated segments their size back, removes leftovers. A block that was
/// sound before is there afterwards, and the store is sound. Takes the store's lock. Errors: as
/// CheckColdStore, and kResourceExhausted.
Result<ColdRepair> RepairColdStore(const std::string& path);

}  // namespace kvtier
