#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::llamacpp {

/// A real kvtier-llama-server with SmolLM2 on a free port, killed at the end. Single-owner.
class ServerProcess {
 public:
  ServerProcess() = default;
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  /// Starts it and waits until it listens. Errors: with its output.
  Status Start(const std::string& log, std::vector<std::string> arguments);
  uint16_t port() const { return port_; }
  pid_t pid() const { return pid_; }
  void Terminate() const;
  /// Waits for its end: the exit code, minus the signal that ended it.
  int Wait();

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

}  // namespace kvtier::llamacpp
