#pragma once

#include <memory>
#include <vector>

#include "daemon/engine/entry.h"
#include "tiers/base/check.h"

namespace kvtier {

/// The copies of all blocks, chained from their rows: most blocks have one, on one of the tiers. A copy stays
/// where it is until it is removed. Threads: single-owner.
class CopyPool {
 public:
  /// What is not there is an absent copy.
  const Copy& Find(const Entry& entry, TierId tier) const {
    static constexpr Copy kAbsent;
    const CopyId id = IdOf(entry, tier);
    return id == kNoCopy ? kAbsent : at(id);
  }
  /// Of one that is there.
  Copy& At(const Entry& entry, TierId tier) {
    const CopyId id = IdOf(entry, tier);
    KVTIER_CHECK(id != kNoCopy);
    return at(id);
  }
  /// Of one that is not there.
  Copy& Add(Entry& entry, TierId tier, CopyState state) {
    KVTIER_CHECK(state != CopyState::kAbsent && IdOf(entry, tier) == kNoCopy);
    CopyId id = free_;
    if (id != kNoCopy) {
      free_ = at(id).next;
    } else {
      id = CopyId{made_++};
      if (id.value % kChunk == 0) chunks_.push_back(std::make_unique<Copy[]>(kChunk));
    }
    Copy& copy = at(id);
    copy = Copy{};
    copy.tier = tier;
    copy.state = state;
    copy.next = entry.first_copy;
    entry.first_copy = id;
    ++size_;
    return copy;
  }
  /// Of one that is there, without pins and without a place.
  void Remove(Entry& entry, TierId tier) {
    CopyId* link = &entry.first_copy;
    while (*link != kNoCopy && at(*link).tier != tier) link = &at(*link).next;
    KVTIER_CHECK(*link != kNoCopy);
    const CopyId id = *link;
    Copy& copy = at(id);
    KVTIER_CHECK(!copy.pinned() && !copy.has_place());
    *link = copy.next;
    copy = Copy{};
    copy.next = free_;
    free_ = id;
    --size_;
  }

  uint64_t size() const { return size_; }
  uint64_t bytes() const { return chunks_.size() * kChunk * sizeof(Copy); }

 private:
  static constexpr uint32_t kChunk = 1024;
  CopyId IdOf(const Entry& entry, TierId tier) const {
    CopyId id = entry.first_copy;
    while (id != kNoCopy && at(id).tier != tier) id = at(id).next;
    return id;
  }
  Copy& at(CopyId id) { return chunks_[id.value / kChunk][id.value % kChunk]; }
  const Copy& at(CopyId id) const { return chunks_[id.value / kChunk][id.value % kChunk]; }

  std::vector<std::unique_ptr<Copy[]>> chunks_;
  CopyId free_ = kNoCopy;  ///< chained by `next`
  uint32_t made_ = 0;
  uint64_t size_ = 0;
};

}  // namespace kvtier
