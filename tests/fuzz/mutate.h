#pragma once

#include <random>
#include <span>

#include "tests/fuzz/target.h"

namespace kvtier {

/// Longest input that mutation makes.
inline constexpr size_t kMaxFuzzInputBytes = 65536;

/// One to four changes to `input`: bytes, numbers, pieces taken out, repeated or from one of `others`.
/// Follows from `random` alone.
void Mutate(FuzzTarget::Bytes& input, std::span<const FuzzTarget::Bytes> others, std::mt19937& random);

struct FuzzOutcome {
  uint32_t accepted = 0, refused = 0;
};
/// The target on its seeds, on the files of its folder in tests/fuzz/corpus, and on `rounds` mutations of
/// them. `seed` makes them.
FuzzOutcome FuzzForRounds(const FuzzTarget& target, uint32_t rounds, uint32_t seed);

}  // namespace kvtier
