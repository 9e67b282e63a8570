#include "tests/llamacpp/server_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/llamacpp/model.h"
#include "tests/support/eventually.h"
#include "tests/support/paths.h"
#include "tiers/base/check.h"

namespace kvtier::llamacpp {
namespace {

constexpr double kStartSeconds = 60;

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// The port in "listening on http://address:port\n"; 0 before that line is there.
uint16_t PortIn(const std::string& output) {
  const size_t line = output.find("listening on http://");
  if (line == std::string::npos || output.find('\n', line) == std::string::npos) return 0;
  const size_t colon = output.rfind(':', output.find('\n', line));
  return static_cast<uint16_t>(std::stoul(output.substr(colon + 1)));
}

}  // namespace

ServerProcess::~ServerProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  Wait();
}

Status ServerProcess::Start(const std::string& log, std::vector<std::string> arguments) {
  KVTIER_CHECK(pid_ <= 0);
  const std::string program = ProgramFolder() + "/kvtier-llama-server";
  arguments.insert(arguments.begin(), {program, "--model", TestModel()});
  if (std::ranges::find(arguments, "--port") == arguments.end())
    arguments.insert(arguments.end(), {"--port", "0"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int error = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return pid_ = -1, StatusFromErrno(error, program);
  bool ended = false;
  const bool listens = Eventually(kStartSeconds, [&] {
    ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    port_ = PortIn(ReadText(log));
    return ended || port_ != 0;
  });
  if (ended) pid_ = -1;
  if (listens && !ended) return Status::Ok();
  return Status(Code::kUnavailable, "kvtier-llama-server does not listen: " + ReadText(log));
}

void ServerProcess::Terminate() const {
  KVTIER_CHECK(pid_ > 0);
  ::kill(pid_, SIGTERM);
}

int ServerProcess::Wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace kvtier::llamacpp
