#pragma once

#include <array>
#include <cstdint>

namespace kvtier {

/// About how many different names came up, in 4 KiB whatever their number: HyperLogLog (Flajolet, Fusy,
/// Gandouet, Meunier, 2007) with hashes of 64 bits. Within 5 % of the truth (three standard errors); nearly
/// exact for few. Threads: single-owner. Pure.
class DistinctCounter {
 public:
  /// `hash`: a good one of the name, 64 bits.
  void Add(uint64_t hash);
  /// Never less than it was before.
  uint64_t Estimate() const { return estimate_; }

 private:
  static constexpr uint32_t kIndexBits = 12;
  static constexpr uint32_t kRegisters = 1u << kIndexBits;

  double Raw() const;

  /// The most leading zeros, plus one, of the hashes that fell to each; 0: none did.
  std::array<uint8_t, kRegisters> registers_{};
  double sum_ = kRegisters;  ///< of 2^-register
  uint32_t empty_ = kRegisters;
  uint64_t estimate_ = 0;
};

}  // namespace kvtier
