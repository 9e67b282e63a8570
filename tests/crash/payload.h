#pragma once

#include <map>
#include <tuple>

#include "tests/e2e/e2e.h"

namespace kvtier::crash {

inline constexpr uint32_t kBlocksOfOwner = 4;

/// What one put brings: a chain of kBlocksOfOwner blocks.
struct Version {
  uint32_t owner = 0;
  uint32_t generation = 0;
  friend auto operator<=>(const Version&, const Version&) = default;
};

/// K and V that follow from seed, owner and generation in every value, and what a fetch of them must give at
/// each precision: computed with the library's codecs, bit by bit. Single-owner.
class Payloads {
 public:
  explicit Payloads(uint32_t seed) : seed_(seed) {}

  std::vector<int32_t> TokensOf(uint32_t owner) const;
  e2e::Kv& Raw(Version version);
  /// As a fetch answers it, all blocks of the version at `precision`.
  const e2e::Kv& Expected(Version version, kvtier_precision precision);
  void Forget(uint32_t owner);

 private:
  uint32_t SeedOf(Version version) const;

  const uint32_t seed_;
  std::map<std::pair<Version, kvtier_precision>, e2e::Kv> made_;
};

}  // namespace kvtier::crash
