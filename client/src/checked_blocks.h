#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tiers/image.h"

namespace kvtier::client {

/// An image of a leased block that was parsed and identified, and which of its layers have the right
/// checksums. The bytes under a lease do not change, and the slot's epoch says when they are no longer those
/// of the lease: so a decode step pays for neither again. Threads: any.
class CheckedBlock {
 public:
  explicit CheckedBlock(ImageView image)
      : image_(std::move(image)), verified_((image_.table.size() + 63) / 64) {}

  const ImageView& image() const { return image_; }
  bool IsVerified(uint16_t layer) const {
    return (verified_[layer / 64].load(std::memory_order_acquire) >> layer % 64 & 1) != 0;
  }
  void SetVerified(uint16_t layer) {
    verified_[layer / 64].fetch_or(uint64_t{1} << layer % 64, std::memory_order_acq_rel);
  }

 private:
  const ImageView image_;
  std::vector<std::atomic<uint64_t>> verified_;
};

/// Those of one lease, by index of the block. Threads: any.
class CheckedBlocks {
 public:
  /// Null unless the block was checked at this address: an arena may have been given back and offered again.
  std::shared_ptr<CheckedBlock> Find(size_t index, const std::byte* at) const {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(index);
    return found != blocks_.end() && found->second->image().bytes.data() == at ? found->second : nullptr;
  }
  void Set(size_t index, std::shared_ptr<CheckedBlock> block) {
    const std::lock_guard lock(mutex_);
    blocks_[index] = std::move(block);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<size_t, std::shared_ptr<CheckedBlock>> blocks_;
};

}  // namespace kvtier::client
