#pragma once

#include "tiers/base/unique_fd.h"

namespace kvtier {

/// Calls a thread that waits for a device, not for a queue: a descriptor that can be read from once somebody
/// has rung. Threads: any. Errors: none; without a descriptor (invalid) nobody is called.
class Doorbell {
 public:
  Doorbell();
  void Ring() const;
  /// Until the next Ring.
  void Silence() const;
  bool valid() const { return event_.valid(); }
  int fd() const { return event_.get(); }

 private:
  const UniqueFd event_;
};

}  // namespace kvtier
