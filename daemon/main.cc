#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string>

#include "daemon/config/config.h"
#include "daemon/daemon.h"
#include "daemon/notify.h"
#include "daemon/process.h"

namespace {

/// A stop that takes longer ends the process: something hangs, and everything durable is durable already.
constexpr unsigned kStopPatienceSeconds = 20;

/// SIGTERM and SIGINT, blocked in every thread so that only the main thread takes them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

void SetUpLog(const std::string& level) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("kvtierd"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  spdlog::set_level(spdlog::level::from_str(level));
}

int Fail(const kvtier::Status& status) {
  std::fprintf(stderr, "kvtierd: %s\n", status.message().c_str());
  return 1;
}

int Run(const kvtier::Config& config) {
  kvtier::LimitHeap();
  const kvtier::Status descriptors = kvtier::RaiseDescriptorLimit();
  if (!descriptors.ok()) return Fail(descriptors);
  SetUpLog(config.server.log_level);
  const sigset_t signals = BlockStopSignals();
  auto daemon = kvtier::Daemon::Make(config, KVTIER_VERSION);
  if (!daemon.ok()) return Fail(daemon.status());
  kvtier::ServiceManager manager = kvtier::ServiceManager::FromEnvironment();
  manager.Ready();
  std::puts("kvtierd ready");
  std::fflush(stdout);

  const timespec second{.tv_sec = 1, .tv_nsec = 0};
  int signal = -1;
  while ((signal = ::sigtimedwait(&signals, nullptr, &second)) < 0) {
    (*daemon)->Supervise();
    if ((*daemon)->Answers()) manager.Alive();
  }
  manager.Stopping();
  spdlog::info("{}: stopping", ::strsignal(signal));
  ::alarm(kStopPatienceSeconds);
  (*daemon)->Stop();
  daemon->reset();
  spdlog::info("stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("kvtierd keeps the KV cache of LLM inference engines in a ladder of tiers.");
  std::string config_path;
  bool check_only = false;
  app.add_option("--config", config_path, "Configuration file (TOML)")->required()->type_name("FILE");
  app.add_flag("--check", check_only, "Read and check the configuration, then end");
  app.set_version_flag("--version", std::string("kvtierd ") + KVTIER_VERSION);
  CLI11_PARSE(app, argc, argv);

  const kvtier::Result<kvtier::Config> config = kvtier::LoadConfig(config_path);
  if (!config.ok()) return Fail(config.status());
  if (check_only) {
    std::printf("%s: ok\n", config_path.c_str());
    return 0;
  }
  return Run(*config);
}
