#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tiers/base/status.h"
#include "tiers/base/unique_fd.h"

namespace kvtier {

/// From now on the temporary folders of this process are in memory, where the system has a place for that:
/// syncs of a real disk would be most of the time that the tests take.
void KeepTemporaryFilesInMemory();

/// A folder shown through kvtier-fault-fs, which lets go wrong what a test tells it (fault_fs/rules.h). Owns:
/// the process, which unmounts when this ends, also when the test dies. Single-owner.
class FaultMount {
 public:
  /// Shows `backing` at `mount_point`; both exist. Errors: kUnavailable, with the reason, where there is no
  /// FUSE: a reason to skip.
  static Result<std::unique_ptr<FaultMount>> Make(const std::string& backing, const std::string& mount_point);
  ~FaultMount();
  FaultMount(const FaultMount&) = delete;
  FaultMount& operator=(const FaultMount&) = delete;

  /// The answer to a command. It must be one that the file system knows.
  std::string Command(const std::string& line);
  /// "fault " + `what`; returns the rule's number.
  uint64_t Fault(const std::string& what);
  /// How often a rule was applied.
  uint64_t Hits(uint64_t rule);
  /// Operations that hang now.
  uint64_t Waiting();
  /// Forgets all faults; what hangs goes on.
  void Heal() { Command("clear"); }
  const std::string& path() const { return mount_point_; }

 private:
  explicit FaultMount(std::string mount_point) : mount_point_(std::move(mount_point)) {}
  Status Launch(const std::string& backing);
  std::string ReadLine();

  const std::string mount_point_;
  int pid_ = -1;
  UniqueFd commands_, answers_;
};

}  // namespace kvtier
