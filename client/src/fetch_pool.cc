#include "client/src/fetch_pool.h"

#include <sched.h>

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
    others_.Leave(threads_, ::sched_getcpu());
  }
  changed_.notify_all();
  return Status::Ok();
}

Status FetchPool::StartThreads() {
  try {
    while (threads_.size() < wanted_threads_) threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) return Status(Code::kResourceExhausted, "no thread left");
  }
  return Status::Ok();
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
