#pragma once

#include <memory>
#include <string>

#include "tiers/base/status.h"

namespace kvtier::bench {

/// Serves echoes on a UNIX socket until it is killed. Returns an exit status when it cannot.
int ServeEcho(const std::string& socket);

/// One blocking unary call of given sizes, with nothing of kvtier in it. Threads: one.
class EchoClient {
 public:
  /// Waits until the server answers. Errors: kUnavailable.
  static Result<std::unique_ptr<EchoClient>> Make(const std::string& socket, size_t request_bytes,
                                                  size_t reply_bytes);
  ~EchoClient();

  Status Call();

 private:
  struct Impl;
  explicit EchoClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier::bench
