#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "tiers/base/status.h"

namespace kvtier {

/// A folder of its own, gone with all that is in it. Single-owner.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Sizes of a test's ladder; 0 leaves a tier out.
struct DaemonSettings {
  uint64_t hot_bytes = uint64_t{64} << 20;
  uint64_t warm_bytes = 0;
  uint64_t cold_bytes = 0;
  std::string hot_codec = "raw16";
  std::string hot_medium = "host";
  std::string program = "kvtierd";  ///< of the build
  std::string cold_path = {};       ///< an existing folder; empty: one in the daemon's own
  std::string segment = "8MiB";     ///< of the cold tier
  std::string tails = "never";      ///< likewise
  std::string cold_keys = {};       ///< more lines of the cold tier's section
  std::string server_keys = {};     ///< more lines of the server's
  std::string more;                 ///< sections and keys of kvtier.toml after those of the tiers
};

/// A real kvtierd in a folder of its own, killed at the end. The folder stays over restarts. Single-owner.
class DaemonProcess {
 public:
  explicit DaemonProcess(const DaemonSettings& settings);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  /// Starts it and waits until it answers. Errors: with the end of its log.
  Status Start();
  /// Starts it and does not wait.
  Status Launch();
  Status WaitUntilReady();
  /// SIGKILL, and waits for the end.
  void Kill();
  /// SIGTERM, and waits for the end. Returns the exit code, minus the signal that ended it.
  int Stop();
  /// SIGSTOP, and waits until every thread of it stands.
  bool Pause() const;
  void Continue() const;
  bool running() const { return pid_ > 0; }

  pid_t pid() const { return pid_; }
  const std::string& socket() const { return socket_; }
  uint16_t metrics_port() const { return metrics_port_; }
  const TemporaryFolder& folder() const { return folder_; }
  std::string Log() const;
  /// The answer of the metrics port at `path`. Errors: kUnavailable, also for a status that is not 200.
  Result<std::string> Get(const std::string& path) const;
  Result<std::string> Metrics() const;
  /// One sample by its name with labels, exactly as exposed. Errors: kNotFound.
  Result<double> Metric(const std::string& sample) const;

 private:
  int Reap();

  TemporaryFolder folder_;
  const std::string socket_, program_;
  uint16_t metrics_port_ = 0;
  pid_t pid_ = -1;
};

/// Runs a program of the build to its end; stdout and stderr together.
struct ProgramResult {
  int exit_code = -1;
  std::string output;
};
ProgramResult RunProgram(const std::string& name, const std::string& arguments);
/// The same after a command of the shell that starts it, such as "ulimit -n 20".
ProgramResult RunProgramUnder(const std::string& setup, const std::string& name,
                              const std::string& arguments);

}  // namespace kvtier
