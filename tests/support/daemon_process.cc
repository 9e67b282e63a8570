#include "tests/support/daemon_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/eventually.h"
#include "tests/support/paths.h"
#include "tiers/base/unique_fd.h"

extern char** environ;

namespace kvtier {
namespace {

constexpr double kStartSeconds = 60;  // sanitizers on a busy machine
constexpr size_t kShownLogBytes = 4000;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

/// One that was free a moment ago.
uint16_t FreePort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t bytes = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  KVTIER_CHECK(::bind(fd.get(), generic, bytes) == 0 && ::getsockname(fd.get(), generic, &bytes) == 0);
  return ntohs(address.sin_port);
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void WriteConfig(const std::string& path, const std::string& socket, const std::string& cold, uint16_t port,
                 const DaemonSettings& settings) {
  std::ofstream out(path);
  out << "[server]\nsocket = \"" << socket << "\"\n";
  out << settings.server_keys;
  // For whole test programs: how the daemons do their file I/O.
  if (const char* io = std::getenv("KVTIER_TEST_IO"); io != nullptr) out << "io = \"" << io << "\"\n";
  if (settings.hot_bytes > 0) {
    out << "[tier.hot]\nmedium = \"" << settings.hot_medium << "\"\ncodec = \"" << settings.hot_codec
        << "\"\ncapacity = " << settings.hot_bytes << "\n";
  }
  if (settings.warm_bytes > 0) {
    out << "[tier.warm]\nmedium = \"host\"\ncodec = \"kv4p\"\ncapacity = " << settings.warm_bytes << "\n";
  }
  if (settings.cold_bytes > 0) {
    if (settings.cold_path.empty()) std::filesystem::create_directory(cold);
    out << "[[tier.cold]]\nmedium = \"nvme\"\nsegment = \"" << settings.segment << "\"\npath = \""
        << (settings.cold_path.empty() ? cold : settings.cold_path)
        << "\"\ncapacity = " << settings.cold_bytes << "\ntails = \"" << settings.tails << "\"\n"
        << settings.cold_keys;
  }
  out << "[metrics]\nlisten = \"127.0.0.1:" << port << "\"\n" << settings.more;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-XXXXXX").string();
  KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

DaemonProcess::DaemonProcess(const DaemonSettings& settings)
    : socket_(folder_.File("kvtierd.sock")),
      program_(ProgramFolder() + "/" + settings.program),
      metrics_port_(FreePort()) {
  WriteConfig(folder_.File("kvtier.toml"), socket_, folder_.File("cold"), metrics_port_, settings);
}

DaemonProcess::~DaemonProcess() {
  Kill();
}

Status DaemonProcess::Launch() {
  KVTIER_CHECK(!running());
  const std::string config = folder_.File("kvtier.toml"), log = folder_.File("log");
  const char* const arguments[] = {program_.c_str(), "--config", config.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int error =
      ::posix_spawn(&pid_, program_.c_str(), &actions, nullptr, const_cast<char* const*>(arguments), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return Status::Ok();
  pid_ = -1;
  return StatusFromErrno(error, program_);
}

Status DaemonProcess::WaitUntilReady() {
  bool ended = false;
  const bool ready = Eventually(kStartSeconds, [&] {
    ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    return ended || Get("/readyz").ok();
  });
  if (ended) pid_ = -1;
  if (ready && !ended) return Status::Ok();
  const std::string log = Log();
  return Status(Code::kUnavailable, "kvtierd did not get ready: " +
                                        log.substr(log.size() - std::min(log.size(), kShownLogBytes)));
}

Status DaemonProcess::Start() {
  KVTIER_TRY(Launch());
  return WaitUntilReady();
}

int DaemonProcess::Reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void DaemonProcess::Kill() {
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  Reap();
}

int DaemonProcess::Stop() {
  KVTIER_CHECK(running());
  ::kill(pid_, SIGTERM);
  return Reap();
}

bool DaemonProcess::Pause() const {
  KVTIER_CHECK(running());
  ::kill(pid_, SIGSTOP);
  return Eventually(kStartSeconds, [&] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
      const std::string stat = ReadText(task.path() / "stat");
      const size_t state = stat.rfind(')') + 2;
      if (state >= stat.size() || stat[state] != 'T') return false;
    }
    return true;
  });
}

void DaemonProcess::Continue() const {
  KVTIER_CHECK(running());
  ::kill(pid_, SIGCONT);
}

std::string DaemonProcess::Log() const {
  return ReadText(folder_.File("log"));
}

Result<std::string> DaemonProcess::Metrics() const {
  return Get("/metrics");
}

Result<std::string> DaemonProcess::Get(const std::string& path) const {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(metrics_port_);
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return StatusFromErrno(errno, path);
  }
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return StatusFromErrno(errno, path);
  std::string reply;
  std::array<char, 16384> piece;
  for (ssize_t got = 0; (got = ::recv(fd.get(), piece.data(), piece.size(), 0)) > 0;) {
    reply.append(piece.data(), static_cast<size_t>(got));
  }
  if (reply.find(" 200 ") == std::string::npos)
    return Status(Code::kUnavailable, path + ": " + reply.substr(0, 100));
  return reply;
}

Result<double> DaemonProcess::Metric(const std::string& sample) const {
  KVTIER_ASSIGN(const std::string text, Metrics());
  const size_t at = text.find("\n" + sample + " ");
  if (at == std::string::npos) return Status(Code::kNotFound, "no sample " + sample);
  return std::strtod(text.c_str() + at + sample.size() + 2, nullptr);
}

ProgramResult RunProgram(const std::string& name, const std::string& arguments) {
  return RunProgramUnder(":", name, arguments);
}

ProgramResult RunProgramUnder(const std::string& setup, const std::string& name,
                              const std::string& arguments) {
  const std::string command = setup + "; " + ProgramFolder() + "/" + name + " " + arguments + " 2>&1";
  ProgramResult result;
  FILE* pipe = ::popen(command.c_str(), "re");
  KVTIER_CHECK(pipe != nullptr);
  std::array<char, 4096> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) result.output += piece.data();
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace kvtier
