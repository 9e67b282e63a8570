#include "client/engines/llamacpp/api_reply.h"

#include <kvtier/kvtier.h>

#include <nlohmann/json.hpp>

namespace kvtier::llamacpp {
namespace {

using Json = nlohmann::json;

/// Text is valid UTF-8 already (TextStream); whatever else came in is replaced, never thrown at.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Event(const Json& json) {
  return "data: " + Dump(json) + "\n\n";
}

double Ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    default:
      return "error";
  }
}

Json Usage(const GenerationCost& cost) {
  return {{"prompt_tokens", cost.prompt_tokens},
          {"completion_tokens", cost.generated_tokens},
          {"total_tokens", cost.prompt_tokens + cost.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cost.restored.tokens}}}};
}

Json CacheReport(const GenerationCost& cost) {
  Json report = {{"cached_tokens", cost.restored.tokens},
                 {"blocks_by_tier", cost.restored.blocks_by_tier},
                 {"restore_ms", Ms(cost.restored.took)},
                 {"restore_ended", std::string(CodeName(cost.restored.ended.code()))},
                 {"queued_ms", Ms(cost.queued)},
                 {"first_token_ms", Ms(cost.first_token)},
                 {"total_ms", Ms(cost.total)}};
  if (cost.restored.tokens > 0) {
    report["precision"] = kvtier_precision_name(cost.restored.lowest);
    report["k_error"] = cost.restored.k_error_max;
    report["v_error"] = cost.restored.v_error_max;
  }
  return report;
}

Json Head(const ReplyHead& head, const char* completion, const char* chat) {
  return {{"id", head.id},
          {"object", head.kind == ApiKind::kChat ? chat : completion},
          {"created", head.created_s},
          {"model", head.model}};
}

/// A chunk with one choice.
Json Chunk(const ReplyHead& head, const std::string& text, const Json& finish_reason) {
  Json json = Head(head, "text_completion", "chat.completion.chunk");
  Json choice = {{"index", 0}, {"finish_reason", finish_reason}};
  if (head.kind == ApiKind::kChat) {
    choice["delta"] = text.empty() ? Json::object() : Json{{"content", text}};
  } else {
    choice["text"] = text;
  }
  json["choices"] = Json::array({choice});
  return json;
}

Json Error(const Status& status) {
  const int http = HttpStatusOf(status.code());
  return {{"error",
           {{"message", status.message()},
            {"type", http < 500 ? "invalid_request_error" : "server_error"},
            {"code", std::string(CodeName(status.code()))}}}};
}

}  // namespace

std::string WholeReply(const ReplyHead& head, const std::string& text, const GenerationEnd& end) {
  Json json = Head(head, "text_completion", "chat.completion");
  Json choice = {{"index", 0}, {"finish_reason", NameOf(end.reason)}};
  if (head.kind == ApiKind::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  json["choices"] = Json::array({choice});
  json["usage"] = Usage(end.cost);
  json["kvtier"] = CacheReport(end.cost);
  return Dump(json);
}

std::string FirstEvent(const ReplyHead& head) {
  if (head.kind != ApiKind::kChat) return {};
  Json json = Chunk(head, "", nullptr);
  json["choices"][0]["delta"] = {{"role", "assistant"}, {"content", ""}};
  return Event(json);
}

std::string TextEvent(const ReplyHead& head, const std::string& text) {
  return Event(Chunk(head, text, nullptr));
}

std::string EndEvent(const ReplyHead& head, const GenerationEnd& end) {
  Json json = Chunk(head, "", NameOf(end.reason));
  json["kvtier"] = CacheReport(end.cost);
  return Event(json);
}

std::string UsageEvent(const ReplyHead& head, const GenerationEnd& end) {
  Json json = Head(head, "text_completion", "chat.completion.chunk");
  json["choices"] = Json::array();
  json["usage"] = Usage(end.cost);
  return Event(json);
}

std::string ErrorEvent(const Status& status) {
  return Event(Error(status));
}

std::string ErrorReply(const Status& status) {
  return Dump(Error(status));
}

int HttpStatusOf(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kUnimplemented:
      return 400;
    case Code::kNotFound:
      return 404;
    case Code::kResourceExhausted:
      return 429;
    case Code::kUnavailable:
    case Code::kCancelled:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ModelsReply(const std::string& model, int64_t created_s) {
  return Dump(
      {{"object", "list"},
       {"data",
        Json::array(
            {{{"id", model}, {"object", "model"}, {"created", created_s}, {"owned_by", "kvtier"}}})}});
}

std::string HealthReply(const SchedulerState& state, const std::string& cache_off) {
  Json json = {{"status", state.stopping ? "stopping" : "ok"},
               {"slots", state.slots},
               {"busy", state.busy},
               {"queued", state.queued},
               {"requests", state.requests},
               {"rejected", state.rejected},
               {"prompt_tokens", state.prompt_tokens},
               {"restored_tokens", state.restored_tokens},
               {"generated_tokens", state.generated_tokens},
               {"since_last_step_ms", Ms(state.since_last_step)}};
  json["cache"] = !cache_off.empty()      ? "off: " + cache_off
                  : state.cache_connected ? "connected"
                                          : "not connected";
  return Dump(json);
}

}  // namespace kvtier::llamacpp
