#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvtier::llamacpp {

/// Threads for connections, with a bounded queue. When that is full the one who brings more waits: it is the
/// thread that accepts, so that further clients stay in the kernel's backlog, which is bounded too.
/// Threads: Add by one, Finish by one.
class BoundedPool {
 public:
  BoundedPool(size_t threads, size_t waiting_max) : waiting_max_(waiting_max) {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~BoundedPool() { Finish(); }
  BoundedPool(const BoundedPool&) = delete;
  BoundedPool& operator=(const BoundedPool&) = delete;

  void Add(std::function<void()> job) {
    std::unique_lock lock(mutex_);
    taken_.wait(lock, [this] { return jobs_.size() < waiting_max_ || finishing_; });
    jobs_.push_back(std::move(job));
    // One job wakes one thread: to wake a hundred would hold up the request that they are there for.
    added_.notify_one();
  }
  /// Runs what waits and ends the threads.
  void Finish() {
    {
      const std::lock_guard lock(mutex_);
      finishing_ = true;
      added_.notify_all();
      taken_.notify_all();
    }
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void Work() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        added_.wait(lock, [this] { return !jobs_.empty() || finishing_; });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        taken_.notify_one();
      }
      job();
    }
  }

  const size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable added_;  ///< the pool's threads wait for jobs
  std::condition_variable taken_;  ///< whoever adds waits for room
  std::deque<std::function<void()>> jobs_;
  bool finishing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtier::llamacpp
