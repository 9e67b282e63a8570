#include "client/ctl/config_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "client/ctl/output.h"
#include "tiers/base/unique_fd.h"

extern char** environ;

namespace kvtier::ctl {
namespace {

constexpr std::string_view kName = "kvtierd";
/// A message is a line or two; what says more is no kvtierd.
constexpr size_t kMaxOutputBytes = size_t{64} << 10;

bool IsProgram(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

/// A child that is gone when this is. Single-owner.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    Wait();
  }
  /// As waitpid says it.
  int Wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

/// Starts `daemon`, its standard output and error into `output`.
Result<pid_t> Start(const std::string& daemon, const std::string& file, int output) {
  // One word, so that a name that begins with a dash is no option.
  const std::string config = "--config=" + file;
  const std::array<const char*, 4> arguments = {daemon.c_str(), config.c_str(), "--check", nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, daemon.c_str(), &actions, nullptr,
                                  const_cast<char* const*>(arguments.data()), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Status(Code::kInternal, daemon + ": " + std::generic_category().message(error));
  return pid;
}

/// Until its end.
Result<std::string> ReadAll(int fd, TimePoint deadline) {
  std::string text;
  std::array<char, 4096> piece;
  while (text.size() < kMaxOutputBytes) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock().Now()).count();
    if (left <= 0) return Status(Code::kDeadlineExceeded, "kvtierd --check did not end in time");
    pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
    const int polled = ::poll(&readable, 1, static_cast<int>(std::min<int64_t>(left, 3'600'000)));
    if (polled == 0 || (polled < 0 && errno == EINTR)) continue;
    if (polled < 0) return StatusFromErrno(errno, "poll");
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) return StatusFromErrno(errno, "read");
    if (got > 0) text.append(piece.data(), static_cast<size_t>(got));
  }
  return Status(Code::kInternal, "what was run as kvtierd --check says too much to be one");
}

/// The daemon says what is wrong, not of which kind it is.
Code CodeOf(const std::string& file) {
  if (::access(file.c_str(), R_OK) == 0) return Code::kInvalidArgument;
  return StatusFromErrno(errno, file).code();
}

/// Without the name of who said it, and the end of the line.
std::string MessageOf(std::string text) {
  constexpr std::string_view kSaid = "kvtierd: ";
  if (text.starts_with(kSaid)) text.erase(0, kSaid.size());
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string SoundText(const std::string& daemon, const std::string& file, Format format) {
  if (format == Format::kHuman) {
    return Printable(file) + ": ok (checked by " + Printable(daemon) + ")\n";
  }
  JsonWriter json;
  json.BeginObject().Text("file", file).Bool("ok", true).Text("checked_by", daemon).EndObject();
  return json.str() + '\n';
}

}  // namespace

Result<std::string> FindDaemonProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && IsProgram(self.parent_path() / kName)) return (self.parent_path() / kName).string();
  const char* const path = std::getenv("PATH");
  std::string_view folders = path != nullptr ? path : "";
  while (!folders.empty()) {
    const size_t end = std::min(folders.find(':'), folders.size());
    const std::filesystem::path program = std::filesystem::path(folders.substr(0, end)) / kName;
    // An empty or relative folder would mean wherever the caller happens to be.
    if (program.is_absolute() && IsProgram(program)) return program.string();
    folders.remove_prefix(std::min(end + 1, folders.size()));
  }
  return Status(Code::kNotFound, "no kvtierd beside kvtierctl or in PATH: it is what checks a configuration");
}

Result<std::string> CheckConfig(const std::string& daemon, const std::string& file, Format format,
                                Duration timeout) {
  const TimePoint deadline = SteadyClock().Now() + timeout;
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return StatusFromErrno(errno, "pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  KVTIER_ASSIGN(const pid_t pid, Start(daemon, file, writing.get()));
  Child child(pid);
  writing = UniqueFd();
  KVTIER_ASSIGN(std::string said, ReadAll(reading.get(), deadline));
  const int status = child.Wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return SoundText(daemon, file, format);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1) return Status(CodeOf(file), MessageOf(std::move(said)));
  const std::string how = WIFEXITED(status) ? "exit code " + std::to_string(WEXITSTATUS(status))
                                            : "signal " + std::to_string(WTERMSIG(status));
  return Status(Code::kInternal, daemon + " --check ended with " + how + ": " + MessageOf(std::move(said)));
}

}  // namespace kvtier::ctl
