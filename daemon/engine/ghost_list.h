#pragma once

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "daemon/engine/entry.h"

namespace kvtier {

/// The blocks that were evicted last: asked for again, they say that the ladder is too small.
/// Threads: single-owner. Bounded; keeps a 64-bit form of the keys.
class GhostList {
 public:
  void Add(TenantId tenant, const Key& key) {
    const uint64_t form = Form(tenant, key);
    if (!set_.insert(form).second) return;
    if (ring_.size() < kGhosts) {
      ring_.push_back(form);
      return;
    }
    set_.erase(ring_[at_]);
    ring_[at_] = form;
    at_ = (at_ + 1) % kGhosts;
  }
  /// Whether the block was evicted lately; forgets it.
  bool Take(TenantId tenant, const Key& key) { return set_.erase(Form(tenant, key)) == 1; }

 private:
  static constexpr size_t kGhosts = 65536;
  static uint64_t Form(TenantId tenant, const Key& key) {
    return std::hash<Key>{}(key) ^ (uint64_t{tenant.value} * 0x9E3779B97F4A7C15u);
  }

  std::vector<uint64_t> ring_;
  absl::flat_hash_set<uint64_t> set_;
  size_t at_ = 0;
};

}  // namespace kvtier
