#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "tiers/base/clock.h"
#include "tiers/base/ids.h"
#include "tiers/base/status.h"

namespace kvtier {

/// Orders the blocks of one tier by how little they are worth. Entries are named by a dense number of the
/// engine's. Threads: single-owner. Pure bookkeeping, no clock of its own.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  struct Insertion {
    uint32_t entry = 0;
    uint32_t depth =
        0;  ///< blocks before it in its chain: of equals, the deeper one goes first (tails before heads)
    uint8_t priority = 0;
  };
  virtual void Insert(const Insertion& block) = 0;
  virtual void Touch(uint32_t entry) = 0;
  virtual void Erase(uint32_t entry) = 0;
  /// The block worth least for which `may_go(entry)` is true, looking at no more than a bounded number of
  /// candidates.
  virtual std::optional<uint32_t> Victim(bool (*may_go)(void* context, uint32_t entry), void* context) = 0;
  virtual uint64_t size() const = 0;
};

/// By the name in the configuration. Errors: kInvalidArgument, listing the names there are.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name);

}  // namespace kvtier
