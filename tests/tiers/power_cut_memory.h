#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tiers/cxl_memory.h"

namespace kvtier {

/// Memory whose power fails at a step that a test chooses: what is stored then is all that the next one
/// finds. Where lines are flushed a write is stored in order, the last one in part; where pages are synced
/// any page that was written may have been stored, and all of them after Persist. Threads: single-owner.
class PowerCutMemory final : public CxlMemory {
 public:
  using Stored = std::shared_ptr<std::vector<std::byte>>;
  static Stored Blank(uint64_t bytes) { return std::make_shared<std::vector<std::byte>>(bytes); }

  /// `cut_at`: the step (write, zero or persist), counted from 1, that does not end any more.
  PowerCutMemory(Stored stored, CxlPersistence persistence, uint64_t cut_at, uint64_t seed)
      : stored_(std::move(stored)),
        working_(*stored_),
        persistence_(persistence),
        cut_at_(cut_at),
        random_(seed) {}

  std::span<const std::byte> span() const override { return working_; }
  CxlPersistence persistence() const override { return persistence_; }
  bool lost() const override { return false; }
  uint64_t stale_bytes() const override { return working_.size(); }
  void Write(uint64_t offset, std::span<const std::byte> bytes) override {
    if (!bytes.empty()) std::memcpy(working_.data() + offset, bytes.data(), bytes.size());
    Changed(offset, bytes.size());
  }
  void Zero(uint64_t offset, uint64_t bytes) override {
    std::fill_n(working_.begin() + static_cast<ptrdiff_t>(offset), bytes, std::byte{0});
    Changed(offset, bytes);
  }
  Status Persist(uint64_t offset, uint64_t bytes) override {
    const bool ends = Step();
    if (persistence_ != CxlPersistence::kPage) return Status::Ok();
    for (uint64_t page = offset / kPage; page * kPage < offset + bytes; ++page) {
      if (ends || (cut_now_ && random_() % 2 == 0)) Store(page * kPage, kPage);
    }
    cut_now_ = false;
    return Status::Ok();
  }

  /// Power is gone: whatever was acknowledged since then never was.
  bool cut() const { return steps_ >= cut_at_; }
  uint64_t steps() const { return steps_; }

 private:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kWord = 8;  ///< what the memory stores whole

  /// Whether this step still ends.
  bool Step() {
    ++steps_;
    cut_now_ = steps_ == cut_at_;
    return steps_ < cut_at_;
  }
  void Changed(uint64_t offset, uint64_t bytes) {
    const bool ends = Step();
    if (persistence_ != CxlPersistence::kPage) {
      if (ends) Store(offset, bytes);
      if (cut_now_ && bytes > 0) Store(offset, random_() % bytes / kWord * kWord);
    } else if (ends || cut_now_) {
      for (uint64_t page = offset / kPage; page * kPage < offset + bytes; ++page) {
        if (random_() % 4 == 0) Store(page * kPage, kPage);  // the system writes back when it likes
      }
    }
    cut_now_ = false;
  }
  void Store(uint64_t offset, uint64_t bytes) {
    if (bytes > 0) std::memcpy(stored_->data() + offset, working_.data() + offset, bytes);
  }

  const Stored stored_;
  std::vector<std::byte> working_;
  const CxlPersistence persistence_;
  const uint64_t cut_at_;
  std::mt19937_64 random_;
  uint64_t steps_ = 0;
  bool cut_now_ = false;
};

}  // namespace kvtier
