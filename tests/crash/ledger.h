#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/crash/payload.h"
#include "tiers/base/unique_fd.h"

namespace kvtier::crash {

/// What the client was told of a block, and so what a restart must find.
enum class Fate : uint8_t {
  kUnknown,  ///< being put or removed, or of a daemon that died: there or not, but never wrong
  kMemory,   ///< acknowledged, perhaps in memory only
  kOnDisk,   ///< seen on the disk: all but a few must be there
  kDurable,  ///< acknowledged as durable: must be there
  kRemoved   ///< acknowledged as removed: must not be there
};

/// Puts after which a removed owner is forgotten.
inline constexpr uint64_t kKeptPuts = 300;

struct Owner {
  Version version;
  uint64_t put = 0;  ///< number of the put: the oldest are removed first
  std::array<Fate, kBlocksOfOwner> blocks{};

  bool live() const {
    return std::ranges::any_of(blocks, [](Fate fate) { return fate != Fate::kRemoved; });
  }
};

/// The journal of what was acknowledged, outside the daemon's folder. A line is written before it counts.
class Ledger {
 public:
  explicit Ledger(const std::string& path);

  /// Also forgets owners that were removed long ago.
  void Putting(Version version);
  void Set(uint32_t owner, uint32_t block, Fate fate);
  void SetAll(uint32_t owner, Fate fate);
  const std::map<uint32_t, Owner>& owners() const { return owners_; }
  const Owner& at(uint32_t owner) const { return owners_.at(owner); }
  /// Blocks whose removal was not acknowledged.
  uint32_t live_blocks() const { return live_; }
  /// Every line about the owner.
  std::string History(uint32_t owner) const;

 private:
  void Write(const std::string& line);

  const std::string path_;
  UniqueFd file_;
  std::map<uint32_t, Owner> owners_;
  uint64_t puts_ = 0;
  uint32_t live_ = 0;
};

}  // namespace kvtier::crash
