#pragma once

#include <sched.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::client {

class LayerFetch;

/// The threads that do the fetches nobody blocks for, the oldest one first. They start with the first fetch.
/// Threads: any.
class FetchPool {
 public:
  static constexpr size_t kMaxFetches = 1024;
  static constexpr uint32_t kMaxThreads = 64;

  explicit FetchPool(uint32_t threads) : wanted_threads_(threads) {}
  ~FetchPool();
  FetchPool(const FetchPool&) = delete;
  FetchPool& operator=(const FetchPool&) = delete;

  /// Errors: kResourceExhausted for too many at a time, or without a thread; kStale after Stop.
  Status Start(std::shared_ptr<LayerFetch> fetch);
  /// Cancels all and ends the threads.
  void Stop();

 private:
  Status StartThreads();
  /// Sends the threads to the other CPUs that they may run on: `cpu` is that of a caller who goes on working.
  /// On a busy machine the kernel wakes them beside him, and neither gets on.
  void LeaveCpu(int cpu);
  void Run();

  const uint32_t wanted_threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<LayerFetch>> fetches_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
  cpu_set_t allowed_{};  ///< what the threads inherited
  int left_cpu_ = -1;
};

}  // namespace kvtier::client
