// kvtier-llama-server: llama.cpp with its KV cache in kvtier, behind OpenAI's completion API. Exit codes: 0
// stopped by SIGTERM or SIGINT, 1 error, 2 usage.
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <thread>

#include "client/engines/llamacpp/http_server.h"
#include "client/engines/llamacpp/llama_token_engine.h"
#include "client/engines/llamacpp/model_identity.h"

namespace kvtier::llamacpp {
namespace {

constexpr int kOk = 0, kError = 1, kUsage = 2;
/// For blocks that were handed over and are not yet stored when the server ends.
constexpr Duration kSettle = std::chrono::seconds(5);

struct Arguments {
  EngineOptions engine;
  PrefixCacheOptions cache;
  HttpOptions http;
  uint32_t queue_max = 64;
  uint32_t cache_timeout_ms = 100, restore_budget_ms = 1000, request_timeout_s = 300, drain_s = 30;
  bool no_cache = false, durable = false;
};

void AddOptions(CLI::App& app, Arguments& arguments) {
  static const std::map<std::string, kvtier_precision> kPrecisions = {
      {"any", KVTIER_PRECISION_ANY}, {"int2", KVTIER_INT2}, {"k4v2", KVTIER_K4V2},
      {"int4", KVTIER_INT4},         {"8", KVTIER_BITS8},   {"16", KVTIER_BITS16}};
  EngineOptions& engine = arguments.engine;
  app.add_option("--model", engine.model_path, "GGUF file")->required()->check(CLI::ExistingFile);
  app.add_option("--slots", engine.sequences, "requests computed at once")->check(CLI::Range(1, 64));
  app.add_option("--context", engine.sequence_tokens, "tokens of a request, prompt and answer")
      ->check(CLI::Range(64, 1 << 20));
  app.add_option("--batch", engine.batch_tokens, "tokens of one step")->check(CLI::Range(64, 4096));
  // They wait for each other by spinning: more than there are CPUs, and nobody gets on.
  const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  app.add_option("--threads", engine.threads, "threads that compute")->check(CLI::Range(1, cpus));
  app.add_option("--host", arguments.http.host, "address to listen on");
  app.add_option("--port", arguments.http.port, "0: any free one");
  app.add_option("--queue", arguments.queue_max, "requests that wait for a slot; more are refused")
      ->check(CLI::Range(0, 4096));
  app.add_option("--max-body", arguments.http.body_bytes_max, "bytes of a request");
  app.add_option("--request-timeout", arguments.request_timeout_s, "seconds")->check(CLI::Range(1, 86'400));
  app.add_option("--drain", arguments.drain_s, "seconds that requests have to end after SIGTERM")
      ->check(CLI::Range(0, 3600));
  app.add_option("--socket", arguments.cache.socket, "of the daemon")->envname("KVTIER_SOCKET");
  app.add_flag("--no-cache", arguments.no_cache, "compute everything");
  app.add_flag("--durable", arguments.durable, "blocks survive the daemon");
  app.add_option("--block", arguments.cache.tokens_per_block, "tokens of a block")
      ->check(CLI::IsMember({64, 128}));
  app.add_option("--min-precision", arguments.cache.min_precision, "of blocks taken from the daemon")
      ->transform(CLI::CheckedTransformer(kPrecisions));
  app.add_option("--cache-timeout", arguments.cache_timeout_ms, "milliseconds of one call to the daemon")
      ->check(CLI::Range(1, 60'000));
  app.add_option("--restore-budget", arguments.restore_budget_ms,
                 "milliseconds to bring back or store a prompt")
      ->check(CLI::Range(1, 60'000));
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
}

/// For health checks and refusals beside the requests that are computed and those that wait.
constexpr uint32_t kMoreConnections = 8;

/// Waits for SIGTERM or SIGINT, which all threads block.
void WaitForSignal(const sigset_t& signals) {
  int signal = 0;
  while (sigwait(&signals, &signal) != 0) {
  }
  std::fprintf(stderr, "kvtier-llama-server: %s, ending\n", signal == SIGTERM ? "SIGTERM" : "SIGINT");
}

int Serve(Arguments& arguments, const sigset_t& signals) {
  const SteadyClock clock;
  Result<std::unique_ptr<LlamaEngine>> made = LlamaEngine::Make(arguments.engine);
  if (!made.ok())
    return std::fprintf(stderr, "kvtier-llama-server: %s\n", made.status().ToString().c_str()), kError;
  LlamaEngine& engine = **made;

  std::optional<PrefixCache> cache;
  if (arguments.no_cache) arguments.http.cache_off = "told so";
  if (!arguments.no_cache) {
    Result<ModelIdentity> identity = IdentityOf(engine);
    if (identity.ok()) {
      cache.emplace(std::move(identity).value(), arguments.cache, clock);
    } else {
      arguments.http.cache_off = identity.status().message();
      std::fprintf(stderr, "kvtier-llama-server: without kvtier: %s\n", arguments.http.cache_off.c_str());
    }
  }
  LlamaTokenEngine tokens(engine);
  Scheduler scheduler(tokens, cache.has_value() ? &*cache : nullptr,
                      {.sequences = arguments.engine.sequences,
                       .sequence_tokens = arguments.engine.sequence_tokens,
                       .batch_tokens = arguments.engine.batch_tokens,
                       .queue_max = arguments.queue_max},
                      clock);
  const LlamaText text(engine.model());
  HttpServer http(scheduler, text, arguments.http, clock);
  const Result<uint16_t> port = http.Bind();
  if (!port.ok())
    return std::fprintf(stderr, "kvtier-llama-server: %s\n", port.status().ToString().c_str()), kError;

  std::thread engine_thread([&] { scheduler.Run(); });
  std::atomic<bool> stopping = false;
  std::thread http_thread([&] {
    http.Serve();
    if (!stopping) ::kill(::getpid(), SIGTERM);  // it cannot accept any more
  });
  std::printf("listening on http://%s:%u\n", arguments.http.host.c_str(), static_cast<unsigned>(*port));
  std::fflush(stdout);
  WaitForSignal(signals);
  scheduler.Stop(std::chrono::seconds(arguments.drain_s));
  engine_thread.join();
  stopping = true;
  http.Stop();
  http_thread.join();
  if (cache.has_value()) {
    const Result<uint64_t> stand = cache->Settle(kSettle);
    if (!stand.ok()) std::fprintf(stderr, "kvtier-llama-server: %s\n", stand.status().ToString().c_str());
  }
  return kOk;
}

int Main(int argc, char** argv) {
  CLI::App app("Serves a GGUF model with llama.cpp; the KV of its prompts lives in kvtierd.",
               "kvtier-llama-server");
  Arguments arguments;
  AddOptions(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  arguments.cache.durability = arguments.durable ? KVTIER_DURABLE : KVTIER_MEMORY;
  arguments.cache.call_timeout = std::chrono::milliseconds(arguments.cache_timeout_ms);
  arguments.cache.restore_budget = std::chrono::milliseconds(arguments.restore_budget_ms);
  arguments.http.request_timeout = std::chrono::seconds(arguments.request_timeout_s);
  arguments.http.connections_max = arguments.engine.sequences + arguments.queue_max + kMoreConnections;
  arguments.http.model_name = std::filesystem::path(arguments.engine.model_path).stem();

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // threads inherit it
  QuietLlamaLog();
  return Serve(arguments, signals);
}

}  // namespace
}  // namespace kvtier::llamacpp

int main(int argc, char** argv) {
  return kvtier::llamacpp::Main(argc, argv);
}
