#pragma once

#include <string>
#include <vector>

#include "tiers/cxl_system.h"

namespace kvtier {

/// What stands in the memory of a CXL tier, and what of it is damaged. Counts are of records unless said.
struct CxlCheck {
  uint64_t segments = 0;            ///< in use
  uint64_t damaged_headers = 0;     ///< of segments: what stands behind is not looked at
  uint64_t foreign_segments = 0;    ///< of another store or place
  uint64_t missing_bytes = 0;       ///< so much shorter than it was made
  uint64_t live = 0;                ///< sound in every byte
  uint64_t damaged = 0;             ///< header, image or tail
  uint64_t unread_bytes = 0;        ///< the device failed
  uint64_t models = 0;              ///< sound ones
  uint64_t damaged_models = 0;      ///< entries, or several side by side
  uint64_t orphans = 0;             ///< live, but of a model that is not there
  bool superblock_damaged = false;  ///< one of the two
  bool closed = false;              ///< in order: the next start takes images as they stand
  std::vector<std::string> damage;  ///< one line each; the first kMaxListedDamage

  /// Nothing is damaged or lost. Dead records, and what a killed daemon had begun to write, are no damage.
  bool sound() const;
};

/// Reads all that a store has in its memory, which no daemon uses: a file, the folder it stands in, or a
/// device-DAX device. Changes nothing. Errors: kNotFound (nothing is there, or stored yet),
/// kFailedPrecondition (a daemon uses it, it holds something else, another version), kDataLoss (both
/// superblocks), kPermissionDenied, kUnavailable.
Result<CxlCheck> CheckCxlStore(const std::string& path, const CxlSystem& system = {});

}  // namespace kvtier
