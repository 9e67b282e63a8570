// kvtier-llama-server over HTTP, with SmolLM2-135M and a real daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/llamacpp/server_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/eventually.h"
#include "tiers/base/unique_fd.h"

namespace kvtier::llamacpp {
namespace {

using Json = nlohmann::json;

struct Reply {
  int status = 0;
  Json json;
};

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    const Status started = daemon_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  void StartServer(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"--socket", daemon_.socket(), "--context", "1024", "--block", "64"};
    if (std::find(more.begin(), more.end(), "--cache-timeout") == more.end())
      more.insert(more.end(), {"--cache-timeout", "2000", "--restore-budget", "5000"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Status started = server_.Start(daemon_.folder().File("server.log"), arguments);
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  httplib::Client Http() const {
    httplib::Client client("127.0.0.1", server_.port());
    client.set_read_timeout(120);
    return client;
  }
  Reply Post(const std::string& path, const Json& body) const { return PostText(path, body.dump()); }
  Reply PostText(const std::string& path, const std::string& body) const {
    const httplib::Result result = Http().Post(path, body, "application/json");
    if (!result) return {.status = -1, .json = {}};
    return {.status = result->status, .json = Json::parse(result->body, nullptr, false)};
  }
  Json Health() const {
    const httplib::Result result = Http().Get("/health");
    return result ? Json::parse(result->body, nullptr, false) : Json();
  }
  static Json Chat(const Json& messages, uint32_t max_tokens = 12) {
    return {{"messages", messages}, {"max_tokens", max_tokens}, {"temperature", 0}};
  }
  static std::string Long(int sentences) {
    std::string text;
    for (int i = 0; i < sentences; ++i)
      text += "Ship number " + std::to_string(i) + " came by in the night. ";
    return text;
  }

  DaemonProcess daemon_{DaemonSettings{}};
  ServerProcess server_;
};

TEST_F(ServerTest, AConversationHitsMoreWithEveryTurn) {
  StartServer();
  Json messages =
      Json::array({{{"role", "system"}, {"content", "You are a lighthouse keeper. " + Long(12)}}});
  uint32_t before = 0;
  for (int turn = 0; turn < 3; ++turn) {
    messages.push_back({{"role", "user"}, {"content", "How many ships came by? " + Long(3)}});
    const Reply reply = Post("/v1/chat/completions", Chat(messages));
    ASSERT_EQ(reply.status, 200) << reply.json;
    EXPECT_EQ(reply.json["object"], "chat.completion");
    const Json& message = reply.json["choices"][0]["message"];
    EXPECT_EQ(message["role"], "assistant");
    EXPECT_FALSE(message["content"].get<std::string>().empty());
    const Json& usage = reply.json["usage"];
    const auto cached = usage["prompt_tokens_details"]["cached_tokens"].get<uint32_t>();
    const auto prompt = usage["prompt_tokens"].get<uint32_t>();
    if (turn == 0) {
      EXPECT_EQ(cached, 0u);
    } else {
      EXPECT_GE(cached, before / 64 * 64) << "all full blocks of the turn before";
      EXPECT_EQ(reply.json["kvtier"]["precision"], "BITS16");
    }
    EXPECT_LT(cached, prompt);
    before = prompt;
    messages.push_back(message);
  }
  EXPECT_EQ(Health()["cache"], "connected");
}

TEST_F(ServerTest, AStreamIsTheAnswerInPieces) {
  StartServer();
  Json body = {{"prompt", "The sea is"}, {"max_tokens", 12}, {"temperature", 0}};
  const Reply whole = Post("/v1/completions", body);
  ASSERT_EQ(whole.status, 200) << whole.json;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const httplib::Result result = Http().Post("/v1/completions", body.dump(), "application/json");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
  std::istringstream lines(result->body);
  std::string line, text, last;
  Json finish, usage;
  while (std::getline(lines, line)) {
    if (!line.starts_with("data: ")) continue;
    last = line.substr(6);
    if (last == "[DONE]") continue;
    const Json chunk = Json::parse(last);
    if (chunk.contains("usage")) usage = chunk["usage"];
    if (chunk["choices"].empty()) continue;
    text += chunk["choices"][0]["text"].get<std::string>();
    if (!chunk["choices"][0]["finish_reason"].is_null()) finish = chunk["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(last, "[DONE]");
  EXPECT_EQ(text, whole.json["choices"][0]["text"]);
  EXPECT_EQ(finish, whole.json["choices"][0]["finish_reason"]);
  EXPECT_EQ(usage["completion_tokens"], whole.json["usage"]["completion_tokens"]);
}

TEST_F(ServerTest, RequestsThatItCannotServeAreAnswered) {
  StartServer({"--max-body", "20000"});
  EXPECT_EQ(PostText("/v1/completions", "{").status, 400);
  const Reply two = Post("/v1/completions", {{"prompt", "a"}, {"n", 2}});
  EXPECT_EQ(two.status, 400);
  EXPECT_EQ(two.json["error"]["type"], "invalid_request_error");
  EXPECT_THAT(two.json["error"]["message"].get<std::string>(), testing::HasSubstr("n "));
  EXPECT_EQ(Post("/v1/completions", {{"prompt", Long(100)}, {"max_tokens", 1000}}).status, 400) << "context";
  EXPECT_EQ(Post("/v1/completions", {{"prompt", ""}}).status, 400);
  EXPECT_EQ(Post("/v1/completions", {{"prompt", std::string(30'000, 'a')}}).status, 413);
  const std::string form = Json{{"prompt", Long(200)}}.dump();
  const httplib::Result as_form = Http().Post("/v1/completions", form, "application/x-www-form-urlencoded");
  ASSERT_TRUE(as_form);
  EXPECT_EQ(as_form->status, 400) << "too long for the context, not for what curl -d says it sends";
  EXPECT_EQ(Post("/v1/embeddings", {{"input", "a"}}).status, 404);
  const httplib::Result models = Http().Get("/v1/models");
  ASSERT_TRUE(models);
  EXPECT_EQ(Json::parse(models->body)["data"][0]["id"], "SmolLM2-135M-Instruct.Q4_1");
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200) << "and goes on";
}

TEST_F(ServerTest, StopStringsAndSeedsAreHeeded) {
  StartServer();
  const Reply plain =
      Post("/v1/completions", {{"prompt", "One, two, three,"}, {"max_tokens", 12}, {"temperature", 0}});
  ASSERT_EQ(plain.status, 200);
  const auto text = plain.json["choices"][0]["text"].get<std::string>();
  ASSERT_GE(text.size(), 8u);
  const std::string stop = text.substr(4, 3);
  const Reply cut =
      Post("/v1/completions",
           {{"prompt", "One, two, three,"}, {"max_tokens", 12}, {"temperature", 0}, {"stop", stop}});
  EXPECT_EQ(cut.json["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut.json["choices"][0]["finish_reason"], "stop");
  const Json seeded = {{"prompt", "Once"}, {"max_tokens", 12}, {"temperature", 1.5}, {"seed", 7}};
  EXPECT_EQ(Post("/v1/completions", seeded).json["choices"], Post("/v1/completions", seeded).json["choices"]);
}

TEST_F(ServerTest, SeveralRequestsAtOnceAndNoMoreThanTheQueueHolds) {
  StartServer({"--slots", "2", "--queue", "2"});
  std::vector<std::future<Reply>> replies;
  const auto post = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const std::string prompt = std::to_string(replies.size()) + ": 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,";
      replies.push_back(std::async(std::launch::async, [this, prompt] {
        return Post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 200}, {"temperature", 0}});
      }));
    }
  };
  // One after the other: of those that come at once, the queue may be full before the engine takes any.
  post(2);
  ASSERT_TRUE(Eventually(30, [&] { return Health()["busy"] == 2; }));
  post(2);
  ASSERT_TRUE(Eventually(30, [&] { return Health()["queued"] == 2; }));
  post(4);
  int good = 0, refused = 0;
  for (std::future<Reply>& reply : replies) {
    const Reply got = reply.get();
    good += got.status == 200 ? 1 : 0;
    refused += got.status == 429 ? 1 : 0;
  }
  EXPECT_EQ(good + refused, 8);
  EXPECT_GE(good, 4) << "two computed and two waited";
  EXPECT_GE(refused, 1);
  EXPECT_EQ(Health()["rejected"], refused);
  EXPECT_TRUE(Eventually(30, [&] { return Health()["busy"] == 0; }));
}

TEST_F(ServerTest, ADaemonKilledDuringAnAnswerDoesNotEndIt) {
  StartServer({"--cache-timeout", "300", "--restore-budget", "1000"});
  const Json chat = Chat({{{"role", "user"}, {"content", Long(20)}}}, 60);
  std::future<Reply> answer =
      std::async(std::launch::async, [&] { return Post("/v1/chat/completions", chat); });
  ASSERT_TRUE(Eventually(30, [&] { return Health()["generated_tokens"] > 3; }));
  daemon_.Kill();
  const Reply first = answer.get();
  ASSERT_EQ(first.status, 200) << first.json;
  const Reply alone = Post("/v1/chat/completions", chat);
  ASSERT_EQ(alone.status, 200) << alone.json;
  EXPECT_EQ(alone.json["kvtier"]["cached_tokens"], 0);
  EXPECT_EQ(alone.json["choices"], first.json["choices"]);
  EXPECT_EQ(Health()["cache"], "not connected");

  ASSERT_TRUE(daemon_.Start().ok());
  EXPECT_TRUE(Eventually(60, [&] {
    const Reply again = Post("/v1/chat/completions", Chat({{{"role", "user"}, {"content", Long(20)}}}, 2));
    return again.json["kvtier"]["cached_tokens"] >= 64;
  }));
}

TEST_F(ServerTest, ASuspendedDaemonDoesNotHoldTheServer) {
  StartServer({"--cache-timeout", "300", "--restore-budget", "1000"});
  const Json chat = Chat({{{"role", "user"}, {"content", Long(10)}}}, 4);
  ASSERT_EQ(Post("/v1/chat/completions", chat).status, 200);
  ASSERT_TRUE(daemon_.Pause());
  for (int i = 0; i < 3; ++i) {
    const Reply reply = Post("/v1/chat/completions", chat);
    ASSERT_EQ(reply.status, 200);
    EXPECT_EQ(reply.json["kvtier"]["cached_tokens"], 0);
    EXPECT_LT(reply.json["kvtier"]["restore_ms"].get<double>(), 3000);
  }
  daemon_.Continue();
  EXPECT_TRUE(Eventually(
      60, [&] { return Post("/v1/chat/completions", chat).json["kvtier"]["cached_tokens"] >= 64; }));
}

TEST_F(ServerTest, ARestartedServerFindsItsConversations) {
  StartServer();
  const Json chat = Chat({{{"role", "user"}, {"content", Long(20)}}}, 4);
  const Reply first = Post("/v1/chat/completions", chat);
  ASSERT_EQ(first.status, 200);
  server_.Terminate();
  EXPECT_EQ(server_.Wait(), 0);
  StartServer();
  const Reply second = Post("/v1/chat/completions", chat);
  EXPECT_GE(second.json["kvtier"]["cached_tokens"], 64);
  EXPECT_EQ(second.json["choices"], first.json["choices"]);
}

TEST_F(ServerTest, ATerminatedServerEndsTheAnswersItOwes) {
  StartServer({"--drain", "60"});
  std::future<Reply> answer = std::async(std::launch::async, [this] {
    return Post("/v1/completions", {{"prompt", "Long ago"}, {"max_tokens", 80}, {"temperature", 0}});
  });
  ASSERT_TRUE(Eventually(30, [&] { return Health()["generated_tokens"] > 3; }));
  server_.Terminate();
  const Reply reply = answer.get();
  EXPECT_EQ(reply.status, 200) << reply.json;
  EXPECT_EQ(server_.Wait(), 0);
}

TEST_F(ServerTest, ATerminatedServerWaitsNoLongerThanItIsTold) {
  StartServer({"--drain", "0"});
  std::future<Reply> answer = std::async(std::launch::async, [this] {
    return Post("/v1/completions", {{"prompt", "Long ago"}, {"max_tokens", 900}, {"temperature", 0.5}});
  });
  ASSERT_TRUE(Eventually(30, [&] { return Health()["generated_tokens"] > 3; }));
  server_.Terminate();
  EXPECT_EQ(server_.Wait(), 0);
  EXPECT_NE(answer.get().status, 200);
}

TEST_F(ServerTest, APortThatAnotherServerHasIsRefused) {
  StartServer();
  ServerProcess second;
  const Status started = second.Start(daemon_.folder().File("second.log"),
                                      {"--no-cache", "--port", std::to_string(server_.port())});
  EXPECT_FALSE(started.ok());
  EXPECT_THAT(started.ToString(), testing::HasSubstr("cannot listen"));
}

/// More than the library itself lets wait: the kernel would let the seventh try again a second later.
TEST_F(ServerTest, ManyMayConnectAtOnce) {
  StartServer();
  ::kill(server_.pid(), SIGSTOP);
  std::vector<UniqueFd> clients;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 60; ++i) {
    clients.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval half_a_second{.tv_sec = 0, .tv_usec = 500'000};
    ::setsockopt(clients.back().get(), SOL_SOCKET, SO_SNDTIMEO, &half_a_second, sizeof half_a_second);
    ASSERT_EQ(::connect(clients.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << i;
  }
  ::kill(server_.pid(), SIGCONT);
}

TEST_F(ServerTest, AClientThatLeavesWithoutAStreamFreesItsSlot) {
  StartServer({"--slots", "1"});
  httplib::Client client = Http();
  client.set_read_timeout(0, 200'000);
  const Json body = {{"prompt", "Long ago"}, {"max_tokens", 900}, {"temperature", 0.5}};
  EXPECT_FALSE(client.Post("/v1/completions", body.dump(), "application/json"));
  EXPECT_TRUE(Eventually(30, [&] {
    const Json health = Health();
    return health["requests"] == 1 && health["busy"] == 0;
  }));
  EXPECT_LT(Health()["generated_tokens"], 900);
}

TEST_F(ServerTest, AClientThatLeavesFreesItsSlot) {
  StartServer({"--slots", "1"});
  httplib::Client client = Http();
  const Json body = {{"prompt", "Long ago"}, {"max_tokens", 900}, {"temperature", 0.5}, {"stream", true}};
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = body.dump();
  request.content_receiver = [](const char*, size_t, uint64_t, uint64_t) {
    return false;
  };  // hang up at once
  httplib::Response response;
  httplib::Error error{};
  EXPECT_FALSE(client.send(request, response, error));
  EXPECT_TRUE(Eventually(30, [&] {
    const Json health = Health();
    return health["requests"] == 1 && health["busy"] == 0;
  }));
  EXPECT_LT(Health()["generated_tokens"], 900);
}

}  // namespace
}  // namespace kvtier::llamacpp
