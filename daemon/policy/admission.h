#pragma once

#include <cstdint>

#include "daemon/policy/write_budget.h"

namespace kvtier {

struct AdmissionOptions {
  bool by_frequency = false;         ///< takes only what is used more than what would have to leave for it
  uint64_t write_bytes_per_day = 0;  ///< 0: unlimited
};

enum class Admission : uint8_t { kAdmitted, kSeldomUsed, kOverBudget };

/// What a tier whose device wears takes of the blocks that are demoted to it (TinyLFU: Einziger, Friedman,
/// Manes, arXiv:1512.00727; whole segments are evicted, so a block is held against the mean of the next one).
/// Threads: single-owner. No clock of its own.
class AdmissionPolicy {
 public:
  explicit AdmissionPolicy(const AdmissionOptions& options)
      : by_frequency_(options.by_frequency), budget_(options.write_bytes_per_day) {}

  bool by_frequency() const { return by_frequency_; }
  /// A block of `bytes` that was used `uses` times lately, where at least `least_uses` are wanted. Its bytes
  /// count as written when it is admitted.
  Admission Judge(uint32_t uses, uint32_t least_uses, uint64_t bytes, TimePoint now) {
    if (by_frequency_ && uses < least_uses) return Admission::kSeldomUsed;
    if (!budget_.Allows(bytes, now)) return Admission::kOverBudget;
    budget_.Spend(bytes);
    return Admission::kAdmitted;
  }
  bool HasBudget(uint64_t bytes, TimePoint now) { return budget_.Allows(bytes, now); }
  /// What is written without being judged.
  void Wrote(uint64_t bytes) { budget_.Spend(bytes); }

 private:
  bool by_frequency_;
  WriteBudget budget_;
};

}  // namespace kvtier
