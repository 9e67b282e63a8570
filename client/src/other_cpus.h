#pragma once

#include <sched.h>

#include <span>
#include <thread>

namespace kvtier::client {

/// Sends threads to the CPUs on which a caller does not go on working: on a busy machine the kernel wakes
/// them beside him, and neither gets on. They keep to what they may run on: the mask they were born with, or
/// the one that somebody else gave them since. Threads: one at a time.
class OtherCpus {
 public:
  /// `threads` are the same at every call, one more perhaps. Where the kernel refuses they run where they
  /// did.
  void Leave(std::span<std::thread> threads, int cpu);

 private:
  cpu_set_t allowed_{};
  cpu_set_t given_{};  ///< by the last Leave; empty before
  int left_cpu_ = -1;
};

}  // namespace kvtier::client
