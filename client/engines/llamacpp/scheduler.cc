#include "client/engines/llamacpp/scheduler.h"

#include <algorithm>
#include <utility>

#include "client/engines/llamacpp/text_stream.h"
#include "tiers/base/check.h"

namespace kvtier::llamacpp {
namespace {

/// Between two looks of an idle engine; it is woken for work and for a stop.
constexpr Duration kIdleLook = std::chrono::seconds(1);

}  // namespace

/// One sequence of the engine and the request that has it.
struct Scheduler::Slot {
  uint32_t sequence = 0;
  std::shared_ptr<Generation> generation;  ///< null: free
  std::vector<int32_t> tokens;             ///< the prompt and what was generated
  uint32_t computed = 0;                   ///< of `tokens`, now in the engine
  uint32_t stored = 0;                     ///< tokens whose blocks are restored or stored
  uint32_t generated = 0;
  std::optional<TextStream> text;
  GenerationCost cost;

  bool busy() const { return generation != nullptr; }
  bool in_prompt() const { return computed < cost.prompt_tokens; }
};

struct Scheduler::Wanted {
  std::vector<BatchToken> batch;
  struct Reader {
    Slot* slot;
    uint32_t index;  ///< of its logits
  };
  std::vector<Reader> readers;
};

Scheduler::Scheduler(TokenEngine& engine, PromptCache* cache, SchedulerOptions options, const Clock& clock)
    : engine_(engine), cache_(cache), options_(options), clock_(clock) {
  KVTIER_CHECK(options.sequences > 0 && options.batch_tokens >= options.sequences);
  for (uint32_t i = 0; i < options.sequences; ++i) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->sequence = i;
  }
}

Scheduler::~Scheduler() = default;

Result<std::shared_ptr<Generation>> Scheduler::Submit(GenerationRequest request) {
  if (request.tokens.empty()) return Status(Code::kInvalidArgument, "the prompt is empty");
  if (request.max_tokens == 0) return Status(Code::kInvalidArgument, "max_tokens is 0");
  const uint64_t tokens = request.tokens.size() + uint64_t{request.max_tokens};
  if (tokens > options_.sequence_tokens) {
    return Status(Code::kInvalidArgument, "prompt and max_tokens are " + std::to_string(tokens) +
                                              " tokens, the context is " +
                                              std::to_string(options_.sequence_tokens));
  }
  auto generation = std::make_shared<Generation>(std::move(request), clock_.Now());
  const std::lock_guard lock(mutex_);
  if (stop_by_.has_value()) return Status(Code::kUnavailable, "the server is stopping");
  if (queue_.size() >= options_.queue_max) {
    rejected_.fetch_add(1, std::memory_order_relaxed);
    return Status(Code::kResourceExhausted, "too many requests are waiting");
  }
  queue_.push_back(generation);
  requests_.fetch_add(1, std::memory_order_relaxed);
  work_.notify_one();
  return generation;
}

void Scheduler::Stop(Duration drain) {
  const std::lock_guard lock(mutex_);
  stop_by_ = std::min(stop_by_.value_or(TimePoint::max()), clock_.Now() + drain);
  work_.notify_one();
}

SchedulerState Scheduler::State() const {
  SchedulerState state;
  state.slots = static_cast<uint32_t>(slots_.size());
  state.busy = busy_.load(std::memory_order_relaxed);
  state.cache_connected = cache_connected_.load(std::memory_order_relaxed);
  if (state.busy > 0) {
    const TimePoint last{Duration(last_step_ns_.load(std::memory_order_relaxed))};
    state.since_last_step = clock_.Now() - last;
  }
  state.requests = requests_.load(std::memory_order_relaxed);
  state.rejected = rejected_.load(std::memory_order_relaxed);
  state.prompt_tokens = prompt_tokens_.load(std::memory_order_relaxed);
  state.restored_tokens = restored_tokens_.load(std::memory_order_relaxed);
  state.generated_tokens = generated_tokens_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  state.queued = static_cast<uint32_t>(queue_.size());
  state.stopping = stop_by_.has_value();
  return state;
}

bool Scheduler::WaitForWork() {
  std::unique_lock lock(mutex_);
  if (busy_.load(std::memory_order_relaxed) > 0) return true;
  while (queue_.empty()) {
    if (stop_by_.has_value()) return false;
    work_.wait_for(lock, kIdleLook);
  }
  return true;
}

void Scheduler::Run() {
  while (WaitForWork()) Step();
}

void Scheduler::Step() {
  last_step_ns_.store(clock_.Now().time_since_epoch().count(), std::memory_order_relaxed);
  EndThoseDue();
  Admit();
  Compute();
}

void Scheduler::Admit() {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    while (!slot->busy()) {
      std::shared_ptr<Generation> next;
      {
        const std::lock_guard lock(mutex_);
        if (queue_.empty()) return;
        next = std::move(queue_.front());
        queue_.pop_front();
        busy_.fetch_add(1, std::memory_order_relaxed);
      }
      Begin(*slot, std::move(next));
      // A slot that is free again had a request that was over before it began.
      if (const auto reason = EndOf(*slot, clock_.Now())) Finish(*slot, *reason);
    }
  }
}

void Scheduler::Begin(Slot& slot, std::shared_ptr<Generation> generation) {
  const GenerationRequest& request = generation->request();
  slot.generation = std::move(generation);
  slot.tokens = request.tokens;
  slot.computed = slot.stored = slot.generated = 0;
  slot.text.emplace(request.stops);
  slot.cost = {};
  slot.cost.prompt_tokens = static_cast<uint32_t>(request.tokens.size());
  slot.cost.queued = clock_.Now() - slot.generation->arrived();
  engine_.Begin(slot.sequence, request.sampling);
  prompt_tokens_.fetch_add(slot.cost.prompt_tokens, std::memory_order_relaxed);
  if (cache_ == nullptr || EndOf(slot, clock_.Now()).has_value()) return;
  slot.cost.restored = cache_->Restore(slot.tokens, engine_.Memory(slot.sequence));
  cache_connected_.store(cache_->connected(), std::memory_order_relaxed);
  slot.computed = slot.cost.restored.tokens;
  slot.stored = slot.cost.restored.full_tokens;
  restored_tokens_.fetch_add(slot.computed, std::memory_order_relaxed);
}

std::optional<FinishReason> Scheduler::EndOf(const Slot& slot, TimePoint now) const {
  if (slot.generation->cancelled()) return FinishReason::kCancelled;
  if (now >= slot.generation->request().deadline) return FinishReason::kDeadline;
  const std::lock_guard lock(mutex_);
  if (stop_by_.has_value() && now >= *stop_by_) return FinishReason::kCancelled;
  return std::nullopt;
}

void Scheduler::EndThoseDue() {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (!slot->busy()) continue;
    if (const auto reason = EndOf(*slot, clock_.Now())) Finish(*slot, *reason);
  }
}

void Scheduler::Fill(Wanted& wanted) {
  const auto add = [&](Slot& slot, uint32_t position) {
    const bool last = position + 1 == slot.tokens.size();
    if (last) wanted.readers.push_back({.slot = &slot, .index = static_cast<uint32_t>(wanted.batch.size())});
    wanted.batch.push_back({.token = slot.tokens[position],
                            .position = static_cast<int32_t>(position),
                            .sequence = slot.sequence,
                            .wants_logits = last});
  };
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->busy() && !slot->in_prompt()) add(*slot, slot->computed++);
  }
  for (const std::unique_ptr<Slot>& slot : slots_) {
    while (slot->busy() && slot->in_prompt() && wanted.batch.size() < options_.batch_tokens)
      add(*slot, slot->computed++);
  }
}

void Scheduler::Compute() {
  Wanted wanted;
  Fill(wanted);
  if (wanted.batch.empty()) return;
  const Status decoded = engine_.Decode(wanted.batch);
  if (!decoded.ok()) {
    for (const std::unique_ptr<Slot>& slot : slots_) {
      if (slot->busy()) Finish(*slot, FinishReason::kError, decoded);
    }
    return;
  }
  for (const Wanted::Reader& reader : wanted.readers)
    Advance(*reader.slot, engine_.Choose(reader.slot->sequence, reader.index));
}

void Scheduler::Advance(Slot& slot, int32_t token) {
  const bool first = slot.generated++ == 0;
  generated_tokens_.fetch_add(1, std::memory_order_relaxed);
  if (first) slot.cost.first_token = clock_.Now() - slot.generation->arrived();
  const bool ends = engine_.EndsGeneration(token);
  if (!ends) {
    slot.tokens.push_back(token);
    slot.generation->Add(slot.text->Add(engine_.Piece(token)));
  }
  if (ends || slot.text->stopped()) return Finish(slot, FinishReason::kStop);
  if (slot.generated == slot.generation->request().max_tokens) return Finish(slot, FinishReason::kLength);
  // Others with the same prompt need not wait for the end of this one.
  if (first) StoreFullBlocks(slot);
}

void Scheduler::StoreFullBlocks(Slot& slot) {
  if (cache_ == nullptr) return;
  const uint32_t full = slot.computed - slot.computed % cache_->tokens_per_block();
  if (full <= slot.stored) return;
  const std::span<const int32_t> tokens(slot.tokens.data(), full);
  slot.stored = cache_->Store(tokens, slot.stored, engine_.Memory(slot.sequence)).full_tokens_end;
}

void Scheduler::Finish(Slot& slot, FinishReason reason, Status status) {
  const bool good = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (good) slot.generation->Add(slot.text->Finish());
  slot.cost.generated_tokens = slot.generated;
  slot.cost.total = clock_.Now() - slot.generation->arrived();
  slot.generation->End({.reason = reason, .status = std::move(status), .cost = slot.cost});
  // Whoever waits has the answer; the blocks of it go to the daemon now. After an error nobody knows what is
  // in the engine.
  if (cache_ != nullptr && reason != FinishReason::kError) {
    const std::span<const int32_t> computed(slot.tokens.data(), slot.computed);
    cache_->Store(computed, slot.stored, engine_.Memory(slot.sequence));
    cache_connected_.store(cache_->connected(), std::memory_order_relaxed);
  }
  engine_.Begin(slot.sequence, {});
  slot.generation = nullptr;
  busy_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace kvtier::llamacpp
