#include "tests/bench/daemon.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tiers/base/unique_fd.h"

namespace kvtier::bench {
namespace {

constexpr double kStartSeconds = 20;
constexpr uint32_t kTryMs = 500;

Result<UniqueFd> LoopbackSocket(sockaddr_in* address, uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return StatusFromErrno(errno, "socket");
  *address = {};
  address->sin_family = AF_INET;
  address->sin_port = htons(port);
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return fd;
}

/// A port that was free a moment ago.
Result<uint16_t> FreePort() {
  sockaddr_in address;
  KVTIER_ASSIGN(const UniqueFd fd, LoopbackSocket(&address, 0));
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd.get(), generic, length) != 0 || ::getsockname(fd.get(), generic, &length) != 0) {
    return StatusFromErrno(errno, "bind");
  }
  return ntohs(address.sin_port);
}

Result<std::string> HttpGet(uint16_t port, const std::string& path) {
  sockaddr_in address;
  KVTIER_ASSIGN(const UniqueFd fd, LoopbackSocket(&address, port));
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return StatusFromErrno(errno, "connect to the metrics");
  }
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0)
    return StatusFromErrno(errno, "send");
  std::string reply;
  char piece[16384];
  ssize_t got = 0;
  while ((got = ::recv(fd.get(), piece, sizeof piece, 0)) > 0) reply.append(piece, static_cast<size_t>(got));
  if (got < 0) return StatusFromErrno(errno, "receive");
  return reply;
}

std::string Config(const DaemonOptions& daemon, const std::string& folder, uint16_t port) {
  std::ostringstream out;
  out << "[server]\nsocket = \"" << folder << "/kvtierd.sock\"\n"
      << "[tier.hot]\nmedium = \"host\"\ncapacity = " << daemon.hot_bytes << "\n";
  if (daemon.warm_bytes > 0) out << "[tier.warm]\ncapacity = " << daemon.warm_bytes << "\n";
  if (daemon.cxl_bytes > 0) {
    out << "[[tier.cold]]\nmedium = \"cxl\"\nsource = \"file\"\npath = \"" << folder
        << "/cxl\"\ncapacity = " << daemon.cxl_bytes << "\n"
        << daemon.cxl_keys;
  }
  if (daemon.cold_bytes > 0) {
    out << "[[tier.cold]]\nmedium = \"nvme\"\npath = \"" << folder
        << "/cold\"\ntails = \"never\"\ncapacity = " << daemon.cold_bytes << "\n"
        << daemon.cold_keys;
  }
  out << "[metrics]\nlisten = \"127.0.0.1:" << port << "\"\n";
  return out.str();
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::Start(const Options& options, const DaemonOptions& settings) {
  std::unique_ptr<Daemon> daemon(new Daemon);
  KVTIER_ASSIGN(daemon->folder_, TemporaryFolder::Make(settings.folder));
  KVTIER_ASSIGN(daemon->metrics_port_, FreePort());
  const std::string& folder = daemon->folder_->path();
  daemon->socket_ = folder + "/kvtierd.sock";
  daemon->log_path_ = folder + "/kvtierd.log";
  std::error_code error;
  if (!std::filesystem::create_directory(folder + "/cold", error)) {
    return StatusFromErrno(error.value(), "create " + folder + "/cold");
  }
  const std::string config_path = folder + "/kvtier.toml";
  std::ofstream(config_path) << Config(settings, folder, daemon->metrics_port_);
  const std::string program = options.kvtierd.empty() ? ProgramFolder() + "/kvtierd" : options.kvtierd;
  KVTIER_ASSIGN(daemon->process_, ChildProcess::Start({program, "--config", config_path}, daemon->log_path_));
  KVTIER_TRY(daemon->WaitUntilItAnswers());
  return daemon;
}

Status Daemon::WaitUntilItAnswers() {
  const double deadline = NowSeconds() + kStartSeconds;
  while (NowSeconds() < deadline) {
    if (process_->Ended()) return Status(Code::kUnavailable, "kvtierd ended at once: " + EndOfLog());
    if (Connect(socket_, kTryMs).ok()) return Status::Ok();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Status(Code::kUnavailable, "kvtierd does not answer: " + EndOfLog());
}

std::string Daemon::EndOfLog() const {
  std::ifstream file(log_path_);
  std::string line;
  std::string last;
  while (std::getline(file, line)) last = line;
  return last;
}

Result<double> Daemon::Metric(const std::string& name) const {
  KVTIER_ASSIGN(const std::string page, HttpGet(metrics_port_, "/metrics"));
  std::istringstream lines(page);
  std::string line;
  double sum = 0;
  while (std::getline(lines, line)) {
    if (!line.starts_with(name) || (line[name.size()] != '{' && line[name.size()] != ' ')) continue;
    sum += std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return sum;
}

Result<Connection> Connect(const std::string& socket, uint32_t timeout_ms) {
  auto options = Sized<kvtier_options>();
  options.socket = socket.c_str();
  options.client_name = "kvtier-bench";
  options.timeout_ms = timeout_ms;
  kvtier_client* handle = nullptr;
  KVTIER_TRY(StatusOf(kvtier_open(&options, &handle), "open"));
  return Connection(handle);
}

Status StatusOf(kvtier_code code, const char* call) {
  if (code == KVTIER_OK) return Status::Ok();
  return Status(static_cast<Code>(code), std::string(call) + ": " + kvtier_last_error());
}

}  // namespace kvtier::bench
