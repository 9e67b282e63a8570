#pragma once

#include <cstdint>

#include "tiers/base/status.h"
#include "tiers/base/unique_fd.h"

namespace kvtier {

/// A memory file of `bytes` zeros that can be sealed, close-on-exec. `name` shows in /proc only.
/// Errors: kResourceExhausted, kUnavailable.
Result<UniqueFd> MakeMemoryFile(const char* name, uint64_t bytes);

/// Adds `seals` (F_SEAL_*). Errors: kUnavailable.
Status AddSeals(int fd, int seals);

/// For a descriptor from someone else: it is a memory file, carries at least `required_seals` (with
/// F_SEAL_SHRINK nobody can cut it under our mapping) and holds at least `bytes`. Errors: kInvalidArgument.
Status CheckSealed(int fd, int required_seals, uint64_t bytes);

}  // namespace kvtier
