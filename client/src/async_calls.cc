#include "client/src/async_calls.h"

#include <system_error>

namespace kvtier::client {

AsyncCalls::~AsyncCalls() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    for (AsyncCall* call : under_way_) call->context.TryCancel();
  }
  started_.notify_one();
  queue_.Shutdown();
  if (thread_.joinable()) thread_.join();
  // A queue must be drained; what was under way is through by now.
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

Status AsyncCalls::Start(std::unique_ptr<AsyncCall> call) {
  std::lock_guard lock(mutex_);
  if (closing_) return Status(Code::kCancelled, "the connection is being closed");
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {
      return Status(Code::kResourceExhausted, "no thread left");
    }
  }
  AsyncCall* started = call.release();
  under_way_.insert(started);
  started->Start(queue_);
  started_.notify_one();
  return Status::Ok();
}

bool AsyncCalls::WaitForWork() {
  std::unique_lock lock(mutex_);
  started_.wait(lock, [this] { return closing_ || !under_way_.empty(); });
  return !under_way_.empty();
}

void AsyncCalls::Run() {
  while (WaitForWork()) {
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok)) return;
    const std::unique_ptr<AsyncCall> call(static_cast<AsyncCall*>(tag));
    {
      std::lock_guard lock(mutex_);
      under_way_.erase(call.get());
    }
    call->Finish();
  }
}

}  // namespace kvtier::client
