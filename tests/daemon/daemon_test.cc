#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/service/raw_client.h"
#include "tests/support/daemon_process.h"

namespace kvtier {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr uint64_t kMiB = uint64_t{1} << 20;

/// Writes a configuration and returns its path.
std::string WriteConfig(const TemporaryFolder& folder, const std::string& text) {
  const std::string path = folder.File("kvtier.toml");
  std::ofstream(path) << text;
  return path;
}
std::string ServerSection(const std::string& socket) {
  return "[server]\nsocket = \"" + socket + "\"\n";
}
constexpr char kHotOnly[] = "[tier.hot]\ncapacity = \"64MiB\"\n[metrics]\nlisten = \"off\"\n";

/// Runs kvtierd with a configuration that it must refuse.
ProgramResult Refused(const TemporaryFolder& folder, const std::string& text) {
  return RunProgram("kvtierd", "--config " + WriteConfig(folder, text));
}
/// Its last line: what stands before is the log.
std::string LastLine(const ProgramResult& result) {
  std::string last;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) last = line;
  return last;
}

TEST(CommandLine, TellsItsVersion) {
  const ProgramResult result = RunProgram("kvtierd", "--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, StartsWith("kvtierd 0."));
}

TEST(CommandLine, NeedsAConfiguration) {
  const ProgramResult result = RunProgram("kvtierd", "");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("--config"));
}

TEST(CommandLine, ChecksAConfigurationWithoutStarting) {
  TemporaryFolder folder;
  const std::string path = WriteConfig(folder, ServerSection(folder.File("s")) + kHotOnly);
  const ProgramResult good = RunProgram("kvtierd", "--check --config " + path);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.output, path + ": ok\n");
  EXPECT_FALSE(std::filesystem::exists(folder.File("s")));
  std::ofstream(path, std::ios::app) << "[tier.hot]\n";
  const ProgramResult bad = RunProgram("kvtierd", "--check --config " + path);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.output, StartsWith("kvtierd: " + path + ":7: "));
}

TEST(Start, EveryRefusalIsOneClearLine) {
  TemporaryFolder folder;
  const std::string socket = folder.File("s");
  EXPECT_EQ(LastLine(RunProgram("kvtierd", "--config " + folder.File("none.toml"))),
            "kvtierd: config file " + folder.File("none.toml") + ": No such file or directory");
  EXPECT_THAT(LastLine(Refused(folder, ServerSection(socket) + "[tier.hot]\ncapacity = \"64TiB\"\n")),
              StartsWith("kvtierd: host tiers of 64TiB do not fit into "));
  EXPECT_EQ(LastLine(Refused(folder, ServerSection(folder.File("no/s")) + kHotOnly)),
            "kvtierd: lock file " + folder.File("no/s.lock") + ": No such file or directory");
  std::ofstream(socket) << "precious";
  EXPECT_EQ(LastLine(Refused(folder, ServerSection(socket) + kHotOnly)),
            "kvtierd: " + socket + " exists and is not a socket");
  EXPECT_EQ(std::filesystem::file_size(socket), 8u);
}

TEST(Start, AColdFolderThatCannotServeIsNamed) {
  TemporaryFolder folder;
  const auto with_path = [&](const std::string& path) {
    return ServerSection(folder.File("s")) + "[[tier.cold]]\npath = \"" + path + "\"\ncapacity = \"1GiB\"\n" +
           "[metrics]\nlisten = \"off\"\n";
  };
  const ProgramResult missing = Refused(folder, with_path(folder.File("none")));
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(LastLine(missing), HasSubstr(folder.File("none")));
  std::ofstream(folder.File("file")) << "x";
  const ProgramResult file = Refused(folder, with_path(folder.File("file")));
  EXPECT_EQ(file.exit_code, 1);
  EXPECT_THAT(LastLine(file), HasSubstr(folder.File("file")));
}

TEST(Start, S53_ASecondDaemonOnTheSameSocketOrDataIsRefusedAndTheFirstGoesOn) {
  DaemonProcess first({.hot_bytes = 64 * kMiB, .warm_bytes = 0, .cold_bytes = 512 * kMiB, .more = ""});
  ASSERT_TRUE(first.Start().ok()) << first.Log();
  TemporaryFolder folder;
  EXPECT_EQ(LastLine(Refused(folder, ServerSection(first.socket()) + kHotOnly)),
            "kvtierd: another kvtierd serves " + first.socket());
  const std::string data = first.folder().File("cold");
  ASSERT_TRUE(std::filesystem::exists(data));
  const ProgramResult same_data =
      Refused(folder, ServerSection(folder.File("s")) + "[[tier.cold]]\npath = \"" + data +
                          "\"\ncapacity = \"512MiB\"\n[metrics]\nlisten = \"off\"\n");
  EXPECT_EQ(same_data.exit_code, 1);
  EXPECT_THAT(LastLine(same_data), HasSubstr(data));
  EXPECT_THAT(*first.Get("/readyz"), EndsWith("\r\n\r\nok\n"));
  EXPECT_EQ(first.Stop(), 0);
}

TEST(Start, ATakenMetricsAddressIsNamed) {
  DaemonProcess first({.hot_bytes = 64 * kMiB, .warm_bytes = 0, .cold_bytes = 0, .more = ""});
  ASSERT_TRUE(first.Start().ok()) << first.Log();
  // The address as the log names it.
  const std::string log = first.Log();
  const size_t begin = log.find("http://") + 7;
  const std::string address = log.substr(begin, log.find("/metrics") - begin);
  TemporaryFolder folder;
  const std::string line =
      LastLine(Refused(folder, ServerSection(folder.File("s")) + "[tier.hot]\ncapacity = \"64MiB\"\n" +
                                   "[metrics]\nlisten = \"" + address + "\"\n"));
  EXPECT_THAT(line, StartsWith("kvtierd: metrics: cannot listen on " + address + ": "));
  EXPECT_THAT(line, HasSubstr("Address already in use"));
}

TEST(Start, TooFewDescriptorsAreRefusedBeforeAnythingRuns) {
  TemporaryFolder folder;
  const std::string config = WriteConfig(folder, ServerSection(folder.File("s")) + kHotOnly);
  const ProgramResult few = RunProgramUnder("ulimit -n 20", "kvtierd", "--config " + config);
  EXPECT_EQ(few.exit_code, 1);
  EXPECT_EQ(few.output, "kvtierd: only 20 open files are allowed (ulimit -n): at least 256 are needed\n");
}

TEST(Running, S67_SocketsAreForTheOwnerAndMetricsOnLoopback) {
  DaemonProcess daemon({.hot_bytes = 64 * kMiB, .warm_bytes = 0, .cold_bytes = 0, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  for (const std::string& path : {daemon.socket(), daemon.socket() + ".session", daemon.socket() + ".lock"}) {
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << path;
  }
  EXPECT_THAT(daemon.Log(), HasSubstr("metrics http://127.0.0.1:"));
  EXPECT_THAT(*daemon.Get("/healthz"), EndsWith("\r\n\r\nok\n"));
}

TEST(Running, SaysWhatItRunsOn) {
  DaemonProcess daemon(
      {.hot_bytes = 64 * kMiB, .warm_bytes = 32 * kMiB, .cold_bytes = 512 * kMiB, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  EXPECT_THAT(daemon.Log(), HasSubstr("hot tier in host memory"));
  EXPECT_THAT(daemon.Log(),
              HasSubstr("hot (64MiB host, raw16), warm (32MiB host, kv4p), cold (512MiB nvme "));
  EXPECT_THAT(daemon.Log(), testing::AnyOf(HasSubstr("file I/O by io_uring"),
                                           HasSubstr("no io_uring: file I/O by plain calls")));
  EXPECT_EQ(*daemon.Metric("kvtier_tier_capacity_bytes{tier=\"warm\"}"), 32.0 * kMiB);
}

/// Lines of the log that have `text`.
std::vector<std::string> LinesWith(const std::string& log, const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(text) != std::string::npos) found.push_back(line);
  }
  return found;
}

TEST(Running, S34_AHotTierOnAGpuThatIsNotThereIsInHostMemoryAndSaysSoOnce) {
  DaemonProcess daemon({.hot_bytes = 64 * kMiB, .hot_medium = "gpu:63", .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  EXPECT_THAT(
      LinesWith(daemon.Log(), "hot tier in host memory"),
      testing::ElementsAre(testing::AllOf(HasSubstr(" warning "), HasSubstr("in host memory, 64MiB of it"))));
  EXPECT_THAT(daemon.Log(), HasSubstr("tiers hot (64MiB host, raw16)"));
  EXPECT_THAT(*daemon.Get("/readyz"), EndsWith("\r\n\r\nok\n"));
}

TEST(Running, AHotTierMeantForAGpuTakesNoMoreThanTheHostHas) {
  DaemonProcess daemon({.hot_bytes = uint64_t{32} << 40, .hot_medium = "gpu:63", .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  const double capacity = *daemon.Metric("kvtier_tier_capacity_bytes{tier=\"hot\"}");
  EXPECT_GE(capacity, 16.0 * kMiB);
  EXPECT_LT(capacity, 1e6 * kMiB);
}

TEST(Running, AColdTierAloneGetsALandingTier) {
  DaemonProcess daemon({.hot_bytes = 0, .warm_bytes = 0, .cold_bytes = 512 * kMiB, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  EXPECT_EQ(*daemon.Metric("kvtier_tier_capacity_bytes{tier=\"landing\"}"), 128.0 * kMiB);
  EXPECT_EQ(*daemon.Metric("kvtier_tier_capacity_bytes{tier=\"cold\"}"), 512.0 * kMiB);
}

TEST(Running, AWarmTierAloneIsEnough) {
  DaemonProcess daemon({.hot_bytes = 0, .warm_bytes = 64 * kMiB, .cold_bytes = 0, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  EXPECT_EQ(*daemon.Metric("kvtier_tier_capacity_bytes{tier=\"warm\"}"), 64.0 * kMiB);
}

TEST(Running, SessionTokensAreNotInTheLog) {
  DaemonProcess daemon({.hot_bytes = 64 * kMiB, .warm_bytes = 0, .cold_bytes = 0, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  RawClient client = RawClient::Connect(daemon.socket() + ".session");
  ASSERT_TRUE(client.connected());
  client.Hello();
  const auto welcome = client.Receive();
  ASSERT_TRUE(welcome && welcome->message.has_welcome());
  const std::string token = welcome->message.welcome().session_token();
  std::string hex;
  for (const char c : token) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
    hex += digits;
  }
  client.Close();
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_THAT(daemon.Log(), HasSubstr("opened"));
  EXPECT_THAT(daemon.Log(), Not(HasSubstr(token)));
  EXPECT_THAT(daemon.Log(), Not(HasSubstr(hex)));
}

TEST(Running, AForeignProtocolIsRefusedAndCounted) {
  DaemonProcess daemon({.hot_bytes = 64 * kMiB, .warm_bytes = 0, .cold_bytes = 0, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  const double before = *daemon.Metric("kvtier_sessions_refused_total");
  RawClient client = RawClient::Connect(daemon.socket() + ".session");
  client.Hello(7, 9);
  const auto refused = client.Receive();
  ASSERT_TRUE(refused && refused->message.has_refused());
  EXPECT_EQ(refused->message.refused().reason(), "this daemon speaks session protocol 1, the client 7 to 9");
  EXPECT_EQ(*daemon.Metric("kvtier_sessions_refused_total"), before + 1);
  EXPECT_THAT(daemon.Log(), HasSubstr("refused: UNSUPPORTED: this daemon speaks session protocol 1"));
}

TEST(Stop, ATerminatedDaemonRemovesItsSockets) {
  DaemonProcess daemon({.hot_bytes = 64 * kMiB, .warm_bytes = 0, .cold_bytes = 512 * kMiB, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  EXPECT_EQ(daemon.Stop(), 0);
  EXPECT_FALSE(std::filesystem::exists(daemon.socket()));
  EXPECT_FALSE(std::filesystem::exists(daemon.socket() + ".session"));
  EXPECT_THAT(daemon.Log(), HasSubstr(" stopped\n"));
}

TEST(Stop, S36_SocketsOfAKilledDaemonStopNoStart) {
  DaemonProcess daemon({.hot_bytes = 64 * kMiB, .warm_bytes = 0, .cold_bytes = 512 * kMiB, .more = ""});
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  daemon.Kill();
  ASSERT_TRUE(std::filesystem::exists(daemon.socket()));
  ASSERT_TRUE(daemon.Start().ok()) << daemon.Log();
  EXPECT_THAT(*daemon.Get("/readyz"), EndsWith("\r\n\r\nok\n"));
}

}  // namespace
}  // namespace kvtier
