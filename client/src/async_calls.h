#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "tiers/base/status.h"

namespace kvtier::client {

/// A gRPC call that nobody waits for.
class AsyncCall {
 public:
  virtual ~AsyncCall() = default;
  /// Sends it; `this` is the tag.
  virtual void Start(grpc::CompletionQueue& queue) = 0;
  /// The reply is there. Runs once, on the thread of AsyncCalls.
  virtual void Finish() = 0;

  grpc::ClientContext context;
};

/// Calls under way without a waiter, and the one thread that takes their replies. It is our own queue and
/// thread, because gRPC's callback interface may destroy a channel on one of its own threads and then waits
/// for itself. Threads: any; the destructor on any but its own.
class AsyncCalls {
 public:
  AsyncCalls() = default;
  /// Cancels what is under way and waits for it.
  ~AsyncCalls();
  AsyncCalls(const AsyncCalls&) = delete;
  AsyncCalls& operator=(const AsyncCalls&) = delete;

  /// Errors: kCancelled while this is being destroyed, kResourceExhausted without a thread; `call` then never
  /// runs.
  Status Start(std::unique_ptr<AsyncCall> call);

 private:
  /// False when it is time to end.
  bool WaitForWork();
  void Run();

  grpc::CompletionQueue queue_;
  std::mutex mutex_;
  std::unordered_set<AsyncCall*> under_way_;
  std::condition_variable started_;
  bool closing_ = false;
  std::thread thread_;  ///< from the first call on
};

}  // namespace kvtier::client
