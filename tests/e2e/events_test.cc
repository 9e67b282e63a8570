// `kvtierctl events` against a real daemon.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "tests/e2e/e2e.h"
#include "tests/support/paths.h"

namespace kvtier::e2e {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

/// A kvtierctl that follows, by lines of JSON. It ends with the daemon.
class Follower {
 public:
  explicit Follower(const DaemonProcess& daemon)
      : pipe_(::popen(("timeout 120 " + ProgramFolder() + "/kvtierctl --json --timeout 60 --socket " +
                       daemon.socket() + " events --follow 2>&1")
                          .c_str(),
                      "re")) {
    KVTIER_CHECK(pipe_ != nullptr);
  }
  ~Follower() {
    if (pipe_ != nullptr) End();
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  /// The next line that has all of `parts`; empty at the end, or when it does not come.
  std::string Await(const std::vector<std::string>& parts) {
    // Snapshots come every ten seconds: a line is never far.
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < give_up &&
           std::fgets(line_.data(), static_cast<int>(line_.size()), pipe_) != nullptr) {
      const std::string line = line_.data();
      seen_ += line;
      const auto has = [&line](const std::string& part) { return line.find(part) != std::string::npos; };
      if (std::ranges::all_of(parts, has)) return line;
    }
    return {};
  }
  /// Its exit code.
  int End() {
    const int status = ::pclose(std::exchange(pipe_, nullptr));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& seen() const { return seen_; }

 private:
  std::FILE* pipe_;
  std::array<char, 8192> line_{};
  std::string seen_;
};

class EventsTest : public E2eTest {};

TEST_F(EventsTest, FollowsSessionsEvictionsAndTheEndOfTheDaemon) {
  StartDaemon({.hot_bytes = 16 * kMiB, .cold_bytes = 16 * kMiB, .segment = "1MiB", .more = {}});
  Follower follower(*daemon_);
  EXPECT_NE(follower.Await({"\"event\":\"snapshot\"", "\"draining\":false", "\"name\":\"cold\""}), "")
      << follower.seen();
  const std::string tenant = "\"tenant\":\"uid:" + std::to_string(::getuid()) + "\"";
  {
    const Engine engine = Connect();
    EXPECT_NE(follower.Await({"\"event\":\"session\",\"kind\":\"opened\"", tenant,
                              "\"pid\":" + std::to_string(::getpid())}),
              "")
        << follower.seen();
    // More than both tiers hold.
    Kv kv = Kv::Random(1, 64 * kBlockTokens);
    for (uint32_t i = 0; i < 16; ++i) engine.Put(engine.Keys(Tokens(i, 64 * kBlockTokens)), kv);
    EXPECT_NE(follower.Await({"\"event\":\"evictions\"", "\"for_room\":"}), "") << follower.seen();
  }
  EXPECT_NE(follower.Await({"\"kind\":\"ended\"", tenant, "\"reason\":\"its socket was closed\""}), "")
      << follower.seen();
  EXPECT_EQ(Ctl(*daemon_, "drain").exit_code, 0);
  EXPECT_NE(follower.Await({"\"event\":\"daemon\",\"kind\":\"draining\""}), "") << follower.seen();

  const ProgramResult now = Ctl(*daemon_, "events");
  EXPECT_EQ(now.exit_code, 0);
  for (const char* told : {" opened by uid ", "evicted from ", "the daemon drains", "; draining\n"}) {
    EXPECT_NE(now.output.find(told), std::string::npos) << told << '\n' << now.output;
  }
  EXPECT_EQ(std::ranges::count(Ctl(*daemon_, "events --follow --count 2").output, '\n'), 2);

  EXPECT_EQ(daemon_->Stop(), 0);
  EXPECT_NE(follower.Await({"\"event\":\"daemon\",\"kind\":\"stopping\""}), "") << follower.seen();
  EXPECT_NE(follower.Await({"{\"error\":\"UNAVAILABLE\""}), "") << follower.seen();
  EXPECT_EQ(follower.End(), 1);
  EXPECT_EQ(Ctl(*daemon_, "events").exit_code, 1);
}

TEST_F(EventsTest, AnotherUserSeesNoSessionsAndNoCountsOfOthers) {
  if (::geteuid() != 0) GTEST_FAIL() << "this test runs a program as another user and must run as root";
  StartDaemon({.hot_bytes = 16 * kMiB, .server_keys = "socket_mode = \"0666\"\n", .more = {}});
  ASSERT_EQ(::chmod(daemon_->folder().path().c_str(), 0755), 0);
  // Whoever it is must be able to read the program.
  const std::string program = daemon_->folder().File("kvtierctl");
  std::filesystem::copy_file(ProgramFolder() + "/kvtierctl", program);
  const auto events_of = [&](const std::string& uid) {
    return RunProgramUnder("exec setpriv --reuid=" + uid + " --regid=" + uid + " --clear-groups " + program +
                               " --json --socket " + daemon_->socket() + " events 2>&1",
                           "", "");
  };
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, 64 * kBlockTokens);
  for (uint32_t i = 0; i < 4; ++i) engine.Put(engine.Keys(Tokens(i, 64 * kBlockTokens)), kv);
  EXPECT_TRUE(Eventually(30, [&] {
    return Ctl(*daemon_, "events --json").output.find("\"event\":\"evictions\"") != std::string::npos;
  }));
  EXPECT_EQ(events_of("20001").exit_code, 0);
  const ProgramResult seen = events_of("20002");
  EXPECT_EQ(seen.exit_code, 0) << seen.output;
  EXPECT_NE(seen.output.find("\"event\":\"snapshot\""), std::string::npos) << seen.output;
  EXPECT_NE(seen.output.find("\"tenant\":\"uid:20002\""), std::string::npos) << "its own: " << seen.output;
  EXPECT_EQ(seen.output.find("\"tenant\":\"uid:20001\""), std::string::npos) << seen.output;
  EXPECT_EQ(seen.output.find("\"tenant\":\"uid:0\""), std::string::npos) << seen.output;
  EXPECT_EQ(seen.output.find("evictions"), std::string::npos) << seen.output;
}

}  // namespace
}  // namespace kvtier::e2e
