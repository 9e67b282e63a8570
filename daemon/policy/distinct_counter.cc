#include "daemon/policy/distinct_counter.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvtier {

void DistinctCounter::Add(uint64_t hash) {
  // The low bits choose; the others, with a one behind them so that there always is one, are the sample.
  uint8_t& highest = registers_[hash & (kRegisters - 1)];
  const uint64_t rest = hash >> kIndexBits << kIndexBits | uint64_t{1} << (kIndexBits - 1);
  const auto rank = static_cast<uint8_t>(std::countl_zero(rest) + 1);
  if (rank <= highest) return;
  sum_ += std::ldexp(1.0, -rank) - std::ldexp(1.0, -highest);
  if (highest == 0) --empty_;
  highest = rank;
  estimate_ = std::max(estimate_, static_cast<uint64_t>(std::llround(Raw())));
}

double DistinctCounter::Raw() const {
  constexpr double kCount = kRegisters;
  constexpr double kAlpha = 0.7213 / (1 + 1.079 / kCount);
  const double estimate = kAlpha * kCount * kCount / sum_;
  // Few names: by how many registers are empty, which is more exact (linear counting).
  if (estimate <= 2.5 * kCount && empty_ > 0) return kCount * std::log(kCount / empty_);
  return estimate;
}

}  // namespace kvtier
