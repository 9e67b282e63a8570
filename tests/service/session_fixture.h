#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "daemon/service/session_server.h"
#include "tests/service/fake_engine.h"
#include "tests/service/raw_client.h"
#include "tiers/base/memfd.h"

namespace kvtier {

/// A folder of its own, gone after the test.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// A session server with a fake engine behind it. Every session belongs to tenant 7 unless the handler says
/// otherwise.
class SessionFixture : public testing::Test {
 protected:
  static constexpr TenantId kTenant{7};

  SessionFixture() {
    options_.socket_path = folder_.File("s.session");
    options_.identity.own_uid = ::geteuid();
    options_.boot_id.fill(std::byte{0x42});
    options_.staging_bytes = 1 << 20;
    options_.staging_total_bytes = 64 << 20;
  }
  /// Members in the order in which a daemon builds them: the engine goes first at the end.
  void Start() {
    auto server = SessionServer::Make(
        options_, {.commands = commands_,
                   .registry = registry_,
                   .arena_descriptor = [this](ArenaId arena) { return DescriptorOf(arena); },
                   .metrics = metrics_,
                   .clock = clock_,
                   .events = hub_,
                   .stores = stores_});
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    server_->Start();
    engine_ = std::make_unique<FakeEngine>(commands_, [this](Command& command) { return Answer(command); });
  }
  ~SessionFixture() override {
    if (server_) server_->Stop();
    engine_.reset();
    server_.reset();
  }

  virtual bool Answer(Command& command) {
    if (auto* open = std::get_if<OpenSession>(&command.body)) {
      for (const ArenaSpec& arena : arenas_at_open_) server_->OnSessionArena(open->session, arena);
      open->reply(OpenedSession{.tenant = kTenant});
    }
    if (auto* close = std::get_if<CloseSession>(&command.body)) close->reply(Done{});
    return true;
  }
  Result<int> DescriptorOf(ArenaId arena) {
    if (arena.value != 1 || !arena_file_.valid()) return Status(Code::kNotFound, "no such arena");
    return arena_file_.get();
  }
  ArenaSpec MakeArena() {
    arena_file_ = std::move(MakeMemoryFile("arena", ArenaBytes(2, 4096))).value();
    return ArenaSpec{.id = ArenaId{1}, .tier = TierId{0}, .tenant = kTenant, .slots = 2, .slot_bytes = 4096};
  }
  /// Connects, says hello and takes the welcome.
  RawClient Open() {
    RawClient client = RawClient::Connect(options_.socket_path);
    EXPECT_TRUE(client.connected());
    EXPECT_TRUE(client.Hello());
    auto incoming = client.Receive();
    EXPECT_TRUE(incoming && incoming->message.has_welcome());
    if (incoming) {
      welcome_ = incoming->message.welcome();
      staging_ = std::move(incoming->descriptor);
    }
    return client;
  }
  /// What the daemon says before it closes.
  std::string RefusalOf(RawClient& client) {
    auto incoming = client.Receive();
    if (!incoming || !incoming->message.has_refused()) return "no refusal";
    EXPECT_TRUE(client.SeesEndOfFile());
    return incoming->message.refused().reason();
  }

  TestFolder folder_;
  SessionServerOptions options_;
  BoundedQueue<Command> commands_{64};
  SessionRegistry registry_;
  Metrics metrics_;
  EventHub hub_{metrics_};
  SteadyClock clock_;
  UniqueFd arena_file_;
  std::vector<ArenaSpec> arenas_at_open_;
  std::vector<SharedStore> stores_;
  v1::Welcome welcome_;  ///< of the last Open
  UniqueFd staging_;
  std::unique_ptr<SessionServer> server_;
  std::unique_ptr<FakeEngine> engine_;
};

}  // namespace kvtier
