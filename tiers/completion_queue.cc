#include "tiers/completion_queue.h"

#include <chrono>
#include <thread>
#include <utility>

namespace kvtier {

namespace {

/// Between two tries to hand a completion to a full queue.
constexpr Duration kFullQueuePause = std::chrono::milliseconds(1);

}  // namespace

void Complete(std::span<Completion> completions, BoundedQueue<Completion>& queue,
              const std::function<void()>& on_completion, std::atomic<TimePoint>& last_progress) {
  if (completions.empty()) return;
  for (Completion& completion : completions) {
    const bool last = &completion == &completions.back();
    while (!(last ? queue.TryPush(std::move(completion)) : queue.TryPushQuietly(std::move(completion)))) {
      if (queue.closed()) return;
      queue.Wake();
      if (on_completion) on_completion();
      std::this_thread::sleep_for(kFullQueuePause);
      last_progress = SteadyClock{}.Now();
    }
  }
  last_progress = SteadyClock{}.Now();
  if (on_completion) on_completion();
}

}  // namespace kvtier
