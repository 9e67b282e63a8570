#pragma once

#include <atomic>
#include <functional>
#include <span>

#include "tiers/base/bounded_queue.h"
#include "tiers/base/clock.h"
#include "tiers/job.h"

namespace kvtier {

/// Hands what became of jobs to the engine, in order, with one wake for all of them; then `on_completion`,
/// which may be empty. While the queue is full it waits, and `last_progress` shows that it does. What a
/// closed queue does not take goes: nobody is left to answer. Any thread.
void Complete(std::span<Completion> completions, BoundedQueue<Completion>& queue,
              const std::function<void()>& on_completion, std::atomic<TimePoint>& last_progress);

}  // namespace kvtier
