#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tiers/base/status.h"

namespace kvtier {

/// A small file system of its own, mounted on a folder of its own, gone when this ends; what a test that died
/// left is unmounted by the next Make. Single-owner. Errors of both: kUnavailable, with the reason, where
/// this machine does not let tests mount: a reason to skip.
class ScratchDisk {
 public:
  static Result<std::unique_ptr<ScratchDisk>> MakeTmpfs(uint64_t bytes);
  /// On a loop device with sectors of `sector_bytes`. `type`: "ext4" or "xfs" (of at least 300 MiB).
  static Result<std::unique_ptr<ScratchDisk>> MakeLoop(const std::string& type, uint64_t bytes,
                                                       uint32_t sector_bytes);
  ~ScratchDisk();
  ScratchDisk(const ScratchDisk&) = delete;
  ScratchDisk& operator=(const ScratchDisk&) = delete;

  /// Of a tmpfs.
  void Resize(uint64_t bytes) const;
  /// As statvfs says.
  uint64_t UsedBytes() const;
  uint64_t FreeBytes() const;
  const std::string& path() const { return path_; }

 private:
  ScratchDisk();
  std::string root_, path_;
};

}  // namespace kvtier
