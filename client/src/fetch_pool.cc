#include "client/src/fetch_pool.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "client/src/layer_fetch.h"

namespace kvtier::client {

FetchPool::~FetchPool() {
  Stop();
}

Status FetchPool::Start(std::shared_ptr<LayerFetch> fetch) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return Status(Code::kStale, "the handle is closed");
    if (fetches_.size() >= kMaxFetches) return Status(Code::kResourceExhausted, "too many fetches under way");
    KVTIER_TRY(StartThreads());
    fetches_.push_back(std::move(fetch));
    LeaveCpu(::sched_getcpu());
  }
  changed_.notify_all();
  return Status::Ok();
}

Status FetchPool::StartThreads() {
  try {
    while (threads_.size() < wanted_threads_) {
      threads_.emplace_back([this] { Run(); });
      if (::pthread_getaffinity_np(threads_.back().native_handle(), sizeof(allowed_), &allowed_) != 0)
        CPU_ZERO(&allowed_);
    }
  } catch (const std::system_error&) {
    if (threads_.empty()) return Status(Code::kResourceExhausted, "no thread left");
  }
  return Status::Ok();
}

void FetchPool::LeaveCpu(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE || cpu == left_cpu_) return;
  left_cpu_ = cpu;
  cpu_set_t others = allowed_;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0) return;
  // Where that is refused they run where they did.
  for (std::thread& thread : threads_)
    ::pthread_setaffinity_np(thread.native_handle(), sizeof(others), &others);
}

void FetchPool::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || !fetches_.empty(); });
    if (stopped_) return;
    const std::shared_ptr<LayerFetch> fetch = fetches_.front();
    lock.unlock();
    const bool did = fetch->DoPiece();
    lock.lock();
    if (!did && !fetches_.empty() && fetches_.front() == fetch) fetches_.pop_front();
  }
}

void FetchPool::Stop() {
  std::deque<std::shared_ptr<LayerFetch>> left;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    left.swap(fetches_);
  }
  changed_.notify_all();
  for (const auto& fetch : left) fetch->Cancel();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace kvtier::client
