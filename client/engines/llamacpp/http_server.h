#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/engines/llamacpp/llama_text.h"
#include "client/engines/llamacpp/scheduler.h"

namespace kvtier::llamacpp {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  ///< 0: any free one
  std::string model_name;
  std::string cache_off;          ///< why nothing goes to kvtier; "" when it does
  uint32_t connections_max = 32;  ///< at once, a thread each; more wait unaccepted
  size_t body_bytes_max = size_t{4} << 20;
  uint32_t chat_tokens_default = 512;
  Duration request_timeout = std::chrono::seconds(300);
};

/// POST /v1/completions and /v1/chat/completions (also streaming), GET /v1/models and /health over HTTP/1.1.
/// No TLS and no authentication: it belongs on a loopback address or behind a proxy.
/// Threads: Serve on one; Stop any, once it serves.
class HttpServer {
 public:
  /// All outlive the server.
  HttpServer(Scheduler& scheduler, const LlamaText& text, HttpOptions options, const Clock& clock);
  ~HttpServer();

  /// The port. Errors: kUnavailable when the address cannot be had.
  Result<uint16_t> Bind();
  /// Answers requests until Stop; then ends the connections it has.
  void Serve();
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvtier::llamacpp
