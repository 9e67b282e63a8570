#include "client/engines/llamacpp/api_request.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvtier::llamacpp {
namespace {

using Json = nlohmann::json;

Status Wrong(const std::string& field, const char* what) {
  return Status(Code::kInvalidArgument, field + " " + what);
}

const Json* Find(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<bool> Bool(const Json& object, const char* field) {
  const Json* value = Find(object, field);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return Wrong(field, "is not true or false");
  return value->get<bool>();
}

struct Range {
  double low, high;
};
Result<double> Number(const Json& object, const char* field, double otherwise, Range range) {
  const Json* value = Find(object, field);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) return Wrong(field, "is not a number");
  const auto number = value->get<double>();
  if (!(number >= range.low && number <= range.high)) return Wrong(field, "is out of its range");
  return number;
}

Result<std::optional<uint32_t>> Whole(const Json& object, const char* field) {
  const Json* value = Find(object, field);
  if (value == nullptr) return std::optional<uint32_t>();
  if (!value->is_number_integer() || value->get<double>() < 0 ||
      value->get<double>() > double{std::numeric_limits<uint32_t>::max()}) {
    return Wrong(field, "is not a whole number from 0 on");
  }
  return std::optional<uint32_t>(value->get<uint32_t>());
}

/// Fields that are only served with the value that means nothing.
Status RefuseUnserved(const Json& object) {
  for (const char* field : {"logit_bias", "tools", "tool_choice", "functions", "function_call",
                            "response_format", "suffix", "audio", "modalities", "prediction"}) {
    const Json* value = Find(object, field);
    const bool means_nothing = value == nullptr || value->empty() || *value == "none" ||
                               *value == Json{{"type", "text"}} || *value == Json::array({"text"});
    if (!means_nothing) return Wrong(field, "is not served");
  }
  for (const char* field : {"n", "best_of"}) {
    const Json* value = Find(object, field);
    if (value != nullptr && *value != 1) return Wrong(field, "is only served as 1");
  }
  for (const char* field : {"presence_penalty", "frequency_penalty"}) {
    const Json* value = Find(object, field);
    if (value != nullptr && *value != 0) return Wrong(field, "is only served as 0");
  }
  for (const char* field : {"logprobs", "top_logprobs", "echo"}) {
    const Json* value = Find(object, field);
    if (value != nullptr && *value != false) return Wrong(field, "is not served");
  }
  return Status::Ok();
}

Result<std::string> Stop(const Json& value) {
  if (!value.is_string()) return Wrong("stop", "is not a string or up to 4 of them");
  std::string stop = value.get<std::string>();
  if (stop.empty() || stop.size() > kStopBytesMax)
    return Wrong("stop", "has a string that is empty or too long");
  return stop;
}

Result<std::vector<std::string>> Stops(const Json& object) {
  std::vector<std::string> stops;
  const Json* value = Find(object, "stop");
  if (value == nullptr) return stops;
  if (!value->is_array()) {
    KVTIER_ASSIGN(std::string stop, Stop(*value));
    stops.push_back(std::move(stop));
    return stops;
  }
  // Nothing of a body is ever copied as JSON: that recurses as deep as a client nests.
  if (value->size() > kStopsMax) return Wrong("stop", "is not a string or up to 4 of them");
  for (const Json& element : *value) {
    KVTIER_ASSIGN(std::string stop, Stop(element));
    stops.push_back(std::move(stop));
  }
  return stops;
}

Result<Sampling> SamplingOf(const Json& object) {
  Sampling sampling;
  KVTIER_ASSIGN(const double temperature, Number(object, "temperature", 1, {.low = 0, .high = 2}));
  KVTIER_ASSIGN(const double top_p, Number(object, "top_p", 1, {.low = 0, .high = 1}));
  KVTIER_ASSIGN(const double top_k, Number(object, "top_k", sampling.top_k, {.low = 0, .high = 1e6}));
  KVTIER_ASSIGN(const std::optional<uint32_t> seed, Whole(object, "seed"));
  sampling.temperature = static_cast<float>(temperature);
  sampling.top_p = static_cast<float>(top_p);
  sampling.top_k = static_cast<int32_t>(top_k);
  sampling.seed = seed.value_or(std::numeric_limits<uint32_t>::max());  // llama.cpp's "any"
  return sampling;
}

/// What both kinds of request have.
Result<ApiRequest> ParseCommon(const Json& object) {
  if (!object.is_object()) return Status(Code::kInvalidArgument, "the body is not a JSON object");
  KVTIER_TRY(RefuseUnserved(object));
  ApiRequest request;
  KVTIER_ASSIGN(request.sampling, SamplingOf(object));
  KVTIER_ASSIGN(request.stops, Stops(object));
  KVTIER_ASSIGN(request.stream, Bool(object, "stream"));
  if (const Json* options = Find(object, "stream_options")) {
    if (!options->is_object()) return Wrong("stream_options", "is not an object");
    KVTIER_ASSIGN(request.stream_usage, Bool(*options, "include_usage"));
  }
  KVTIER_ASSIGN(request.max_tokens, Whole(object, "max_tokens"));
  if (!request.max_tokens.has_value()) {
    KVTIER_ASSIGN(request.max_tokens, Whole(object, "max_completion_tokens"));
  }
  if (request.max_tokens == 0u) return Wrong("max_tokens", "is 0");
  return request;
}

/// A string, or a list of text parts, as newer clients send.
Result<std::string> ContentOf(const Json& message) {
  const Json* content = Find(message, "content");
  if (content == nullptr) return Wrong("messages", "has one without content");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return Wrong("messages", "has content that is no text");
  std::string text;
  for (const Json& part : *content) {
    const Json* type = part.is_object() ? Find(part, "type") : nullptr;
    const Json* value = part.is_object() ? Find(part, "text") : nullptr;
    if (type == nullptr || *type != "text" || value == nullptr || !value->is_string())
      return Wrong("messages", "has content that is no text");
    text += value->get<std::string>();
  }
  return text;
}

Result<std::vector<ChatMessage>> MessagesOf(const Json& object) {
  const Json* list = Find(object, "messages");
  if (list == nullptr || !list->is_array() || list->empty())
    return Wrong("messages", "is not a list of messages");
  if (list->size() > kMessagesMax) return Wrong("messages", "has too many of them");
  std::vector<ChatMessage> messages;
  for (const Json& message : *list) {
    const Json* role = message.is_object() ? Find(message, "role") : nullptr;
    if (role == nullptr || (*role != "system" && *role != "user" && *role != "assistant"))
      return Wrong("messages", "has a role that is not system, user or assistant");
    KVTIER_ASSIGN(std::string content, ContentOf(message));
    // Templates are made of C strings.
    if (content.find('\0') != std::string::npos) return Wrong("messages", "has a NUL character");
    messages.push_back({.role = role->get<std::string>(), .content = std::move(content)});
  }
  return messages;
}

/// Nothing is thrown: invalid text gives a value that is "discarded", which is no object.
Json Parse(std::string_view body) {
  return Json::parse(body, nullptr, false);
}

}  // namespace

Result<ApiRequest> ParseCompletion(std::string_view body) {
  const Json object = Parse(body);
  KVTIER_ASSIGN(ApiRequest request, ParseCommon(object));
  const Json* prompt = Find(object, "prompt");
  if (prompt != nullptr && prompt->is_array() && prompt->size() == 1) prompt = &prompt->front();
  if (prompt == nullptr || !prompt->is_string()) return Wrong("prompt", "is not one string");
  request.prompt = prompt->get<std::string>();
  return request;
}

Result<ApiRequest> ParseChat(std::string_view body) {
  const Json object = Parse(body);
  KVTIER_ASSIGN(ApiRequest request, ParseCommon(object));
  KVTIER_ASSIGN(request.messages, MessagesOf(object));
  return request;
}

}  // namespace kvtier::llamacpp
