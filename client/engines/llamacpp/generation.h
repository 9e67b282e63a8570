#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/engines/llamacpp/prompt_cache.h"
#include "client/engines/llamacpp/token_engine.h"

namespace kvtier::llamacpp {

struct GenerationRequest {
  std::vector<int32_t> tokens;  ///< of the prompt, at least one
  uint32_t max_tokens = 16;     ///< at least 1; with the prompt within a sequence of the engine
  Sampling sampling;
  std::vector<std::string> stops;
  TimePoint deadline = TimePoint::max();
};

enum class FinishReason : uint8_t {
  kStop,      ///< the model's own end, or a stop string
  kLength,    ///< max_tokens
  kDeadline,  ///< the request's
  kCancelled,
  kError,
};

/// What a request cost, known when it ends.
struct GenerationCost {
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
  RestoreReport restored;
  Duration queued = Duration::zero();
  Duration first_token = Duration::zero();  ///< since the request came; zero when there was none
  Duration total = Duration::zero();
};

struct GenerationEnd {
  FinishReason reason = FinishReason::kStop;
  Status status = Status::Ok();  ///< of kError
  GenerationCost cost;
};

/// One request between the thread that waits for it and the engine's. What is pending is bounded by the
/// request's max_tokens. Threads: any.
class Generation {
 public:
  explicit Generation(GenerationRequest request, TimePoint arrived)
      : request_(std::move(request)), arrived_(arrived) {}

  const GenerationRequest& request() const { return request_; }
  TimePoint arrived() const { return arrived_; }

  /// The engine's side. Nothing after End.
  void Add(const std::string& text);
  void End(GenerationEnd end);
  bool cancelled() const;

  /// The other side: text that came, waiting until there is some, the end, or `timeout` is over.
  struct Chunk {
    std::string text;
    std::optional<GenerationEnd> end;  ///< then no more comes
  };
  Chunk Take(Duration timeout);
  /// Nobody waits any more: the engine ends it soon.
  void Cancel();

 private:
  const GenerationRequest request_;
  const TimePoint arrived_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::optional<GenerationEnd> end_;
  bool cancelled_ = false;
};

}  // namespace kvtier::llamacpp
