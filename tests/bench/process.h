#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::bench {

/// A folder that is removed with everything in it. Owns: the folder.
class TemporaryFolder {
 public:
  /// Made inside `parent`; empty: the system's folder for such.
  static Result<std::unique_ptr<TemporaryFolder>> Make(const std::string& parent = {});
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

/// A child process, killed when this object goes. Threads: one.
class ChildProcess {
 public:
  /// Output goes to `log_path`. Errors: of posix_spawn.
  static Result<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& arguments,
                                                     const std::string& log_path);
  ~ChildProcess() { Kill(); }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int signal) const;
  /// SIGSTOP, and waits until every thread of it stands.
  void Pause() const;
  /// SIGKILL, then waits for the end. Does nothing a second time.
  void Kill();
  /// Whether it has ended by itself.
  bool Ended();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_;
};

/// The folder of this program's own file.
std::string ProgramFolder();

}  // namespace kvtier::bench
