#pragma once

#include <cstdint>
#include <string>

#include "client/engines/llamacpp/generation.h"
#include "client/engines/llamacpp/scheduler.h"

namespace kvtier::llamacpp {

enum class ApiKind : uint8_t { kCompletion, kChat };

/// What all replies to one request have in common.
struct ReplyHead {
  ApiKind kind = ApiKind::kCompletion;
  std::string id;
  std::string model;
  int64_t created_s = 0;
};

/// The JSON of OpenAI's API, plus "kvtier" beside "usage": what came from the cache, from which tier and in
/// which precision, and the times. All functions are pure.
std::string WholeReply(const ReplyHead& head, const std::string& text, const GenerationEnd& end);
/// One server-sent event each, with its empty line. The first chunk of a chat names the role.
std::string FirstEvent(const ReplyHead& head);
std::string TextEvent(const ReplyHead& head, const std::string& text);
std::string EndEvent(const ReplyHead& head, const GenerationEnd& end);
std::string UsageEvent(const ReplyHead& head, const GenerationEnd& end);
std::string ErrorEvent(const Status& status);
inline constexpr char kDoneEvent[] = "data: [DONE]\n\n";

/// {"error": ...}, and the HTTP status that goes with it.
std::string ErrorReply(const Status& status);
int HttpStatusOf(Code code);

std::string ModelsReply(const std::string& model, int64_t created_s);
/// `cache_off` says why there is none; "" when there is.
std::string HealthReply(const SchedulerState& state, const std::string& cache_off);

}  // namespace kvtier::llamacpp
