#include <CLI/CLI.hpp>

#include "tests/bench/bench.h"
#include "tests/bench/echo.h"
#include "tests/bench/ladder.h"

namespace kvtier::bench {
namespace {

using Part = Status (*)(const Options&, Report&);
struct NamedPart {
  const char* name;
  Part measure;
};
constexpr NamedPart kLadder[] = {
    {"lookup", MeasureLookup},
    {"copies", MeasureCopies},
    {"capacity", MeasureOverCapacity},
    {"dead", MeasureDeadDaemon},
};

int RunLadder(const Options& options, const std::string& only) {
  Report report("ladder");
  for (const NamedPart& part : kLadder) {
    if (!only.empty() && only != part.name) continue;
    if (const Status status = part.measure(options, report); !status.ok()) report.Failed(part.name, status);
  }
  return report.Print(options);
}

int Main(int argc, char** argv) {
  CLI::App app("Measures kvtier. Exits non-zero when a check is not ok.", "kvtier-bench");
  app.require_subcommand(1);
  Options options;
  std::string only;
  CLI::App* ladder =
      app.add_subcommand("ladder", "Put, lookup, fetch and overload of a kvtierd that it starts");
  ladder->add_flag("--quick", options.quick, "Fewer rounds, under 40 s");
  ladder->add_flag("--json", options.json, "One JSON object instead of the table");
  ladder->add_option("--kvtierd", options.kvtierd, "The daemon's program (default: beside this one)");
  ladder->add_option("--only", only, "One part")
      ->check(CLI::IsMember({"lookup", "copies", "capacity", "dead"}));
  std::string socket;
  CLI::App* echo = app.add_subcommand("echo-server", "The bare gRPC echo that calls are compared with");
  echo->add_option("socket", socket, "UNIX socket to serve on")->required();
  CLI11_PARSE(app, argc, argv);
  return echo->parsed() ? ServeEcho(socket) : RunLadder(options, only);
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::Main(argc, argv);
}
