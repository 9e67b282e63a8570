#include "client/engines/llamacpp/api_request.h"

#include <gtest/gtest.h>

#include <random>

namespace kvtier::llamacpp {
namespace {

TEST(CompletionRequest, HasOpenAisDefaults) {
  const Result<ApiRequest> request = ParseCompletion(R"({"model": "any", "prompt": "Hello"})");
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  EXPECT_EQ(request->prompt, "Hello");
  EXPECT_FALSE(request->max_tokens.has_value());
  EXPECT_EQ(request->sampling.temperature, 1.0f);
  EXPECT_EQ(request->sampling.top_p, 1.0f);
  EXPECT_TRUE(request->stops.empty());
  EXPECT_FALSE(request->stream);
}

TEST(CompletionRequest, TakesWhatItServes) {
  const Result<ApiRequest> request = ParseCompletion(
      R"({"prompt": ["Hello"], "max_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 3, "seed": 9,
          "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true}, "n": 1, "user": "me",
          "logprobs": null, "presence_penalty": 0, "logit_bias": {}})");
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  EXPECT_EQ(request->prompt, "Hello");
  EXPECT_EQ(request->max_tokens, 7u);
  EXPECT_EQ(request->sampling.temperature, 0.0f);
  EXPECT_EQ(request->sampling.top_p, 0.5f);
  EXPECT_EQ(request->sampling.top_k, 3);
  EXPECT_EQ(request->sampling.seed, 9u);
  EXPECT_EQ(request->stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request->stream && request->stream_usage);
}

TEST(CompletionRequest, NamesTheFieldThatIsWrong) {
  for (const auto& [fields, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("prompt": 3)", "prompt"},
           {R"("prompt": ["a", "b"])", "prompt"},
           {R"("prompt": [[1, 2]])", "prompt"},
           {R"("prompt": null)", "prompt"},
           {R"("prompt": "a", "max_tokens": 0)", "max_tokens"},
           {R"("prompt": "a", "max_tokens": -1)", "max_tokens"},
           {R"("prompt": "a", "max_tokens": 1.5)", "max_tokens"},
           {R"("prompt": "a", "max_tokens": 4294967296)", "max_tokens"},
           {R"("prompt": "a", "max_tokens": 1e300)", "max_tokens"},
           {R"("prompt": "a", "temperature": 2.5)", "temperature"},
           {R"("prompt": "a", "temperature": "hot")", "temperature"},
           {R"("prompt": "a", "top_p": -0.1)", "top_p"},
           {R"("prompt": "a", "top_k": 1e9)", "top_k"},
           {R"("prompt": "a", "seed": -1)", "seed"},
           {R"("prompt": "a", "stop": [1])", "stop"},
           {R"("prompt": "a", "stop": "")", "stop"},
           {R"("prompt": "a", "stop": ["a", "b", "c", "d", "e"])", "stop"},
           {R"("prompt": "a", "stream": "yes")", "stream"},
           {R"("prompt": "a", "stream_options": 1)", "stream_options"},
           {R"("prompt": "a", "n": 2)", "n"},
           {R"("prompt": "a", "best_of": 3)", "best_of"},
           {R"("prompt": "a", "echo": true)", "echo"},
           {R"("prompt": "a", "logprobs": 5)", "logprobs"},
           {R"("prompt": "a", "suffix": "b")", "suffix"},
           {R"("prompt": "a", "logit_bias": {"1": 2})", "logit_bias"},
           {R"("prompt": "a", "tools": [{}])", "tools"},
           {R"("prompt": "a", "response_format": {"type": "json_object"})", "response_format"},
           {R"("prompt": "a", "presence_penalty": 0.5)", "presence_penalty"}}) {
    const Result<ApiRequest> request = ParseCompletion("{" + fields + "}");
    ASSERT_EQ(request.status().code(), Code::kInvalidArgument) << fields;
    EXPECT_TRUE(request.status().message().starts_with(name + " ")) << request.status().message();
  }
}

TEST(CompletionRequest, RefusesWhatIsNoJsonObject) {
  for (const char* body : {"", "{", "[]", "null", "3", "\"x\"", "{\"prompt\": \"\xFF\"}", "{} {}"}) {
    EXPECT_EQ(ParseCompletion(body).status().code(), Code::kInvalidArgument) << body;
    EXPECT_EQ(ParseChat(body).status().code(), Code::kInvalidArgument) << body;
  }
}

TEST(ChatRequest, TakesMessagesAndTextParts) {
  const Result<ApiRequest> request = ParseChat(
      R"({"messages": [{"role": "system", "content": "Be short."},
                       {"role": "user", "content": [{"type": "text", "text": "Hi "},
                                                    {"type": "text", "text": "there"}]}],
          "max_completion_tokens": 5, "stop": "END", "response_format": {"type": "text"}, "tool_choice": "none"})");
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  ASSERT_EQ(request->messages.size(), 2u);
  EXPECT_EQ(request->messages[0].role, "system");
  EXPECT_EQ(request->messages[1].content, "Hi there");
  EXPECT_EQ(request->max_tokens, 5u);
  EXPECT_EQ(request->stops, std::vector<std::string>{"END"});
}

TEST(ChatRequest, RefusesMessagesThatItCannotServe) {
  for (const char* messages :
       {R"(null)", R"([])", R"("hi")", R"([3])", R"([{"role": "user"}])", R"([{"content": "a"}])",
        R"([{"role": "tool", "content": "a"}])", R"([{"role": "user", "content": 3}])",
        R"([{"role": "user", "content": "a\u0000b"}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
        R"([{"role": "user", "content": [3]}])"}) {
    const Result<ApiRequest> request = ParseChat(std::string(R"({"messages": )") + messages + "}");
    ASSERT_EQ(request.status().code(), Code::kInvalidArgument) << messages;
    EXPECT_TRUE(request.status().message().starts_with("messages ")) << request.status().message();
  }
}

TEST(ApiRequests, AnyBytesAreAnsweredWithAStatus) {
  std::mt19937 random(20261130);
  const std::string good =
      R"({"messages": [{"role": "user", "content": "a"}], "prompt": "a", "max_tokens": 7, "stop": ["a"], "n": 1})";
  for (int round = 0; round < 20'000; ++round) {
    std::string body = good;
    for (unsigned change = 0; change < 1 + random() % 4; ++change)
      body[random() % body.size()] =
          static_cast<char>(random() % 2 == 0 ? random() % 128 : "{}[]\",:0-9eE"[random() % 12]);
    if (random() % 4 == 0) body.resize(random() % body.size());
    const Code completion = ParseCompletion(body).status().code(), chat = ParseChat(body).status().code();
    ASSERT_TRUE(completion == Code::kOk || completion == Code::kInvalidArgument) << body;
    ASSERT_TRUE(chat == Code::kOk || chat == Code::kInvalidArgument) << body;
  }
}

TEST(ApiRequests, DeepNestingIsRefusedWithoutHarm) {
  std::string deep = R"({"prompt": )";
  deep.append(1'000'000, '[');
  EXPECT_FALSE(ParseCompletion(deep).ok());
  std::string closed(200'000, '[');
  closed.append(200'000, ']');
  for (const char* field :
       {"prompt", "stop", "messages", "logit_bias", "tools", "response_format", "n", "echo"}) {
    const std::string body = std::string(R"({"messages": 1, ")") + field + "\": " + closed + "}";
    EXPECT_FALSE(ParseCompletion(body).ok()) << field;
    EXPECT_FALSE(ParseChat(body).ok()) << field;
  }
}

}  // namespace
}  // namespace kvtier::llamacpp
