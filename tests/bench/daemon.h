#pragma once

#include <kvtier/kvtier.h>

#include <memory>
#include <string>

#include "tests/bench/bench.h"
#include "tests/bench/process.h"

namespace kvtier::bench {

struct DaemonOptions {
  uint64_t hot_bytes = 0;
  uint64_t warm_bytes = 0;  ///< 0: no such tier
  uint64_t cold_bytes = 0;
  std::string cold_keys = {};  ///< more lines of the cold tier's section
  uint64_t cxl_bytes = 0;      ///< on a file in `folder`
  std::string cxl_keys = {};   ///< more lines of that tier's section
  std::string folder = {};     ///< in which its own is made; empty: the system's temporary one
};

/// A kvtierd of its own: configuration, socket, data and log in one temporary folder. Threads: one.
class Daemon {
 public:
  /// Returns when it answers. Errors: kUnavailable with the end of its log.
  static Result<std::unique_ptr<Daemon>> Start(const Options& options, const DaemonOptions& daemon);

  const std::string& socket() const { return socket_; }
  ChildProcess& process() { return *process_; }
  /// Value of one series at /metrics, all labels summed; 0 when it is not there. Errors: kUnavailable.
  Result<double> Metric(const std::string& name) const;

 private:
  Daemon() = default;
  Status WaitUntilItAnswers();
  std::string EndOfLog() const;

  std::unique_ptr<TemporaryFolder> folder_;
  std::string socket_;
  std::string log_path_;
  uint16_t metrics_port_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

struct CloseConnection {
  void operator()(kvtier_client* handle) const { kvtier_close(handle); }
};
using Connection = std::unique_ptr<kvtier_client, CloseConnection>;

/// A struct of the C ABI with its size filled in and the rest zero.
template <typename T>
T Sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

/// `timeout_ms` 0 is the library's default.
Result<Connection> Connect(const std::string& socket, uint32_t timeout_ms);

/// A code of the C ABI with kvtier_last_error() as its text.
Status StatusOf(kvtier_code code, const char* call);

}  // namespace kvtier::bench
