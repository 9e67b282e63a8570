#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tiers/base/fault_guard.h"
#include "tiers/base/unique_fd.h"
#include "tiers/cxl_memory.h"
#include "tiers/cxl_system.h"

namespace kvtier {

/// Where the pages of a mapping are, by a sample of them.
struct NumaPlacement {
  int32_t node = -1;     ///< where most are; -1: the system does not say
  uint32_t on_node = 0;  ///< pages of the sample that are there
  uint32_t sampled = 0;  ///< whose node is known
};

/// The memory of a CXL tier, mapped by libpmem2, for one process alone (flock).
/// Owns: descriptor, mapping, its fault guard. Errors: a page that the device cannot give any more reads as
/// zeros, and lost() is true from then on. Threads: any, for different bytes.
class CxlMapping final : public CxlMemory {
 public:
  struct Options {
    CxlTarget target;
    /// To use; a multiple of 4096. A file is made this large; what it has beyond is given back to the file
    /// system, but stays as a hole: whoever maps it still, from before, may not find its end moved.
    uint64_t bytes = 0;
    /// Looks at the first bytes of a file or device that may hold somebody's data, before anything is
    /// changed.
    std::function<Status(std::span<const std::byte> start)> accept;
  };
  static constexpr uint64_t kStartBytes = uint64_t{128}
                                          << 10;  ///< that `accept` sees, fewer of a shorter file

  /// Errors: kNotFound, kFailedPrecondition (another daemon holds it, it is too small, its kind is another
  /// one), what `accept` says, kResourceExhausted (no space, no memory on the node), kPermissionDenied,
  /// kUnavailable.
  static Result<std::unique_ptr<CxlMapping>> Make(Options options);
  ~CxlMapping() override;

  int fd() const { return fd_.get(); }
  CxlKind kind() const { return kind_; }
  /// "fsdax file, persistent by cache line flushes", for people.
  std::string Describe() const;

  /// The memory once more, for somebody who may read and not write it; without the lock. Errors: those of
  /// open.
  Result<UniqueFd> OpenReadOnly() const;
  /// To be mapped by it: the whole file or device, beyond what is used.
  uint64_t mapped_bytes() const { return mapped_bytes_; }

  std::span<const std::byte> span() const override { return {data_, bytes_}; }
  CxlPersistence persistence() const override { return persistence_; }
  bool lost() const override { return guard_.lost(); }
  uint64_t stale_bytes() const override { return stale_bytes_; }
  /// Around the caches.
  void Write(uint64_t offset, std::span<const std::byte> bytes) override;
  void Zero(uint64_t offset, uint64_t bytes) override;
  Status Persist(uint64_t offset, uint64_t bytes) override;

  NumaPlacement Placement() const;

 private:
  struct Pmem;
  CxlMapping();
  Status OpenFile(const Options& options);
  Status OpenDevice(const Options& options);
  Status OpenMemory(const Options& options);
  Status Map();
  Status BindToNode(uint32_t node);

  UniqueFd fd_;
  CxlKind kind_ = CxlKind::kFile;
  CxlPersistence persistence_ = CxlPersistence::kNone;
  std::unique_ptr<Pmem> pmem_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t mapped_bytes_ = 0;
  uint64_t stale_bytes_ = 0;
  FaultGuard guard_;
};

}  // namespace kvtier
