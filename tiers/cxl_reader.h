#pragma once

#include <memory>
#include <span>
#include <string>

#include "tiers/base/aligned_buffer.h"
#include "tiers/base/block_io.h"
#include "tiers/base/fault_guard.h"
#include "tiers/base/mapping.h"
#include "tiers/base/unique_fd.h"
#include "tiers/cxl_system.h"

namespace kvtier {

/// Reads the memory of a CXL tier that no daemon uses, and keeps one from starting meanwhile. A file is read,
/// never mapped, so that one which is cut or whose disk fails is an error of a read; a device can be mapped
/// only. Owns: descriptor, mapping. Threads: single-owner.
class CxlReader {
 public:
  /// Errors: kNotFound, kFailedPrecondition (a daemon uses it, it is no file or device-DAX device),
  /// kPermissionDenied, kUnavailable.
  static Result<std::unique_ptr<CxlReader>> Open(const CxlTarget& target);

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  /// `bytes` from `offset` on, which must be there; valid until `buffer` is used again. Errors: the device's.
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes, AlignedBuffer& buffer);
  /// Whether a mapped device had not all its pages to give: they were read as zeros.
  bool lost() const { return guard_.lost(); }

 private:
  CxlReader(std::string path, UniqueFd fd, std::unique_ptr<BlockIo> io)
      : path_(std::move(path)), fd_(std::move(fd)), io_(std::move(io)) {}
  Status MapDevice(const CxlTarget& target);

  const std::string path_;
  UniqueFd fd_;
  const std::unique_ptr<BlockIo> io_;
  uint64_t bytes_ = 0;
  MappedMemory mapping_;  ///< of a device
  FaultGuard guard_;      ///< of it; goes first
};

}  // namespace kvtier
