#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "tiers/base/mapping.h"
#include "tiers/base/status.h"
#include "tiers/base/unique_fd.h"

namespace kvtier {

/// Bytes of staging memory that all sessions may have together. Threads: any.
class StagingBudget {
 public:
  explicit StagingBudget(uint64_t total_bytes) : total_bytes_(total_bytes) {}
  /// False when it would pass the total.
  [[nodiscard]] bool Take(uint64_t bytes);
  void Return(uint64_t bytes);
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t total_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
};

/// One session's staging memory, mapped for reading here and written by the client. Its bytes return to the
/// budget when the last holder lets go: the session, or a put that still reads from it. Threads: any.
class Staging {
 public:
  struct WithDescriptor {
    std::shared_ptr<const Staging> staging;
    UniqueFd descriptor;  ///< for the client: writable, sealed against resizing and further seals
  };
  /// Errors: kResourceExhausted.
  static Result<WithDescriptor> Make(std::shared_ptr<StagingBudget> budget, uint64_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::span<const std::byte> bytes() const { return memory_.span(); }

 private:
  explicit Staging(std::shared_ptr<StagingBudget> budget) : budget_(std::move(budget)) {}

  std::shared_ptr<StagingBudget> budget_;
  uint64_t taken_bytes_ = 0;
  MappedMemory memory_;
};

}  // namespace kvtier
