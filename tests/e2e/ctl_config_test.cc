// `kvtierctl config check` beside `kvtierd --check`.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/e2e.h"
#include "tests/support/paths.h"

namespace kvtier::e2e {
namespace {

constexpr char kSound[] = "[tier.hot]\ncapacity = \"64MiB\"\n";

class CtlConfigTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.File(name)) << text;
    return folder_.File(name);
  }
  /// A program that does what `script` says.
  void WriteProgram(const std::string& name, const std::string& script) {
    ASSERT_EQ(::chmod(Write(name, "#!/bin/sh\n" + script + "\n").c_str(), 0755), 0);
  }
  /// A kvtierctl alone in the folder, with `path` for PATH.
  ProgramResult RunAlone(const std::string& path, const std::string& arguments) {
    const std::string program = folder_.File("kvtierctl");
    std::filesystem::copy_file(ProgramFolder() + "/kvtierctl", program,
                               std::filesystem::copy_options::skip_existing);
    return RunProgramUnder("PATH='" + path + "'; exec " + program + " " + arguments + " 2>&1", "", "");
  }

  TemporaryFolder folder_;
};

TEST_F(CtlConfigTest, SaysWhatTheDaemonSays) {
  const std::string daemon = std::filesystem::canonical(ProgramFolder() + "/kvtierd").string();
  const std::string sound = Write("sound.toml", kSound);
  const ProgramResult good = RunProgram("kvtierctl", "config check " + sound);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.output, sound + ": ok (checked by " + daemon + ")\n");
  EXPECT_EQ(RunProgram("kvtierctl", "--json config check " + sound).output,
            "{\"file\":\"" + sound + "\",\"ok\":true,\"checked_by\":\"" + daemon + "\"}\n");

  for (const char* wrong :
       {"", "nonsense", "[tier.hot]\ncapacity = \"64MiB\"\n\n[server]\nsockets = \"/x\"\n",
        "[tier.hot]\ncapacity = \"1KiB\"\n", "[tier.lukewarm]\n"}) {
    const std::string file = Write("wrong.toml", wrong);
    const ProgramResult daemons = RunProgram("kvtierd", "--config " + file + " --check");
    const ProgramResult result = RunProgram("kvtierctl", "config check " + file);
    EXPECT_EQ(daemons.exit_code, 1) << wrong;
    EXPECT_EQ(result.exit_code, 1) << wrong;
    EXPECT_EQ("kvtierd: " + result.output.substr(std::string("kvtierctl: INVALID_ARGUMENT: ").size()),
              daemons.output);
  }
  const std::string file = Write("wrong.toml", "[tier.hot]\ncapacity = \"64MiB\"\n\n[server]\nsockets = 1\n");
  EXPECT_EQ(RunProgram("kvtierctl", "config check " + file)
                .output.find("kvtierctl: INVALID_ARGUMENT: " + file + ":5: [server] sockets: unknown key"),
            0u);
  const ProgramResult json = RunProgram("kvtierctl", "config check --json " + file);
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_EQ(json.output.find("{\"error\":\"INVALID_ARGUMENT\",\"message\":\"" + file + ":5: "), 0u)
      << json.output;

  const ProgramResult absent = RunProgram("kvtierctl", "config check /nowhere/kvtier.toml");
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_EQ(absent.output.find("kvtierctl: NOT_FOUND: config file /nowhere/kvtier.toml: "), 0u)
      << absent.output;
  for (const char* unnamed : {"config", "config check", "config check ''", "config explain"}) {
    EXPECT_EQ(RunProgram("kvtierctl", unnamed).exit_code, 2) << unnamed;
  }
}

TEST_F(CtlConfigTest, AsksTheDaemonInPathWhenNoneIsBesideIt) {
  const std::string sound = Write("sound.toml", kSound);
  const ProgramResult none = RunAlone("/nowhere::relative", "config check " + sound);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(none.output.find("kvtierctl: NOT_FOUND: no kvtierd beside kvtierctl or in PATH"), 0u)
      << none.output;
  const ProgramResult found = RunAlone("/nowhere:" + ProgramFolder(), "config check " + sound);
  EXPECT_EQ(found.exit_code, 0) << found.output;
  EXPECT_EQ(found.output, sound + ": ok (checked by " + ProgramFolder() + "/kvtierd)\n");
}

TEST_F(CtlConfigTest, TakesNoSilenceOrNoiseForAnAnswer) {
  const std::string check = "config check " + Write("sound.toml", kSound);
  WriteProgram("kvtierd", "exec sleep 600");
  const ProgramResult silent = RunAlone("/bin", "--timeout 1 " + check);
  EXPECT_EQ(silent.exit_code, 1);
  EXPECT_NE(silent.output.find("DEADLINE_EXCEEDED"), std::string::npos) << silent.output;
  WriteProgram("kvtierd", "exec yes");
  EXPECT_NE(RunAlone("/usr/bin:/bin", check).output.find("INTERNAL"), std::string::npos);
  WriteProgram("kvtierd", "kill -9 $$");
  EXPECT_NE(RunAlone("/bin", check).output.find("--check ended with signal 9"), std::string::npos);
  WriteProgram("kvtierd", "echo no such option; exit 109");
  EXPECT_NE(RunAlone("/bin", check).output.find("--check ended with exit code 109: no such option\n"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtier::e2e
