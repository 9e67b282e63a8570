#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/src/other_cpus.h"
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
  void Run();

  const uint32_t wanted_threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<LayerFetch>> fetches_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
  OtherCpus others_;
};

}  // namespace kvtier::client
