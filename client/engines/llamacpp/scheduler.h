#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/engines/llamacpp/generation.h"
#include "client/engines/llamacpp/prompt_cache.h"
#include "client/engines/llamacpp/token_engine.h"

namespace kvtier::llamacpp {

struct SchedulerOptions {
  uint32_t sequences = 1;        ///< of the engine: requests computed at once
  uint32_t sequence_tokens = 0;  ///< of each: prompt and answer
  uint32_t batch_tokens = 0;     ///< of one step; at least `sequences`
  uint32_t queue_max = 64;       ///< requests that wait
};

/// For people and health checks. All counters since the start.
struct SchedulerState {
  uint32_t slots = 0, busy = 0, queued = 0;
  bool stopping = false;
  bool cache_connected = false;
  Duration since_last_step = Duration::zero();  ///< of the engine while it has work
  uint64_t requests = 0, rejected = 0;
  uint64_t prompt_tokens = 0, restored_tokens = 0, generated_tokens = 0;
};

/// Runs requests on the engine's sequences, several at a time: each step computes one batch with the next
/// token of every generating request, filled up with prompts. A request starts with what the daemon has of
/// its prompt and leaves its blocks there; nothing is kept in the engine between requests.
/// Threads: Run on one, the engine's; everything else any.
class Scheduler {
 public:
  /// `cache` may be null: then everything is computed. All outlive the scheduler.
  Scheduler(TokenEngine& engine, PromptCache* cache, SchedulerOptions options, const Clock& clock);
  ~Scheduler();

  /// Errors: kResourceExhausted when the queue is full; kUnavailable once it stops; kInvalidArgument for a
  /// prompt that is empty or, with max_tokens, longer than a sequence.
  Result<std::shared_ptr<Generation>> Submit(GenerationRequest request);

  /// Until Stop was called and nothing is left to do.
  void Run();
  /// One step of Run: what is due ends, what waits begins, one batch is computed. Instead of Run, for who
  /// steps by hand.
  void Step();
  /// No more requests; those that are there still end until `drain` is over, then they are cancelled.
  void Stop(Duration drain);

  SchedulerState State() const;
  const SchedulerOptions& options() const { return options_; }

 private:
  struct Slot;
  struct Wanted;  ///< a batch, and which slots get logits from it

  /// False when there is nothing to do and nothing will come.
  bool WaitForWork();
  void Admit();
  void Begin(Slot& slot, std::shared_ptr<Generation> generation);
  /// Why a slot's request ends before its next token, if it does.
  std::optional<FinishReason> EndOf(const Slot& slot, TimePoint now) const;
  void EndThoseDue();
  void Fill(Wanted& wanted);
  void Compute();
  void Advance(Slot& slot, int32_t token);
  void StoreFullBlocks(Slot& slot);
  void Finish(Slot& slot, FinishReason reason, Status status = Status::Ok());

  TokenEngine& engine_;
  PromptCache* const cache_;
  const SchedulerOptions options_;
  const Clock& clock_;
  std::vector<std::unique_ptr<Slot>> slots_;  ///< engine thread only

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<Generation>> queue_;
  std::optional<TimePoint> stop_by_;

  std::atomic<uint32_t> busy_ = 0;
  std::atomic<bool> cache_connected_ = false;
  std::atomic<int64_t> last_step_ns_ = 0;
  std::atomic<uint64_t> requests_ = 0, rejected_ = 0;
  std::atomic<uint64_t> prompt_tokens_ = 0, restored_tokens_ = 0, generated_tokens_ = 0;
};

}  // namespace kvtier::llamacpp
