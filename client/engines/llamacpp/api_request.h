#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/engines/llamacpp/generation.h"
#include "client/engines/llamacpp/llama_text.h"

namespace kvtier::llamacpp {

/// Bounds of one request's body, beside the server's own of its bytes.
inline constexpr size_t kStopsMax = 4, kStopBytesMax = 256, kMessagesMax = 1024;

/// The part of OpenAI's completion requests that is served.
struct ApiRequest {
  std::string prompt;                 ///< of a completion
  std::vector<ChatMessage> messages;  ///< of a chat
  std::optional<uint32_t> max_tokens;
  Sampling sampling;
  std::vector<std::string> stops;
  bool stream = false;
  bool stream_usage = false;  ///< stream_options.include_usage
};

/// Body of POST /v1/completions. Errors: kInvalidArgument, for people: what is wrong with which field.
/// Fields that would change the answer and are not served are errors; unknown ones are ignored.
Result<ApiRequest> ParseCompletion(std::string_view body);
/// Body of POST /v1/chat/completions. Errors: as above.
Result<ApiRequest> ParseChat(std::string_view body);

}  // namespace kvtier::llamacpp
