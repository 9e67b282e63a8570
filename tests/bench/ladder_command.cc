#include <CLI/CLI.hpp>
#include <memory>

#include "tests/bench/bench.h"
#include "tests/bench/commands.h"
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
    {"lookup", MeasureLookup},   {"copies", MeasureCopies},      {"capacity", MeasureOverCapacity},
    {"dead", MeasureDeadDaemon}, {"mapped", MeasureMappedStore},
};

struct Arguments {
  Options options;
  std::string only;
  std::string echo_socket;
};

int RunLadder(const Options& options, const std::string& only) {
  Report report("ladder");
  for (const NamedPart& part : kLadder) {
    if (!only.empty() && only != part.name) continue;
    if (const Status status = part.measure(options, report); !status.ok()) report.Failed(part.name, status);
  }
  return report.Print(options);
}

}  // namespace

void AddLadder(CLI::App& app, int& exit_status) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* ladder = app.add_subcommand("ladder",
                                        "Put, lookup, fetch and overload of a kvtierd that it starts; exits "
                                        "non-zero when a check is not ok");
  ladder->add_flag("--quick", arguments->options.quick, "Fewer rounds, under 40 s");
  ladder->add_flag("--json", arguments->options.json, "One JSON object instead of the table");
  ladder->add_option("--kvtierd", arguments->options.kvtierd,
                     "The daemon's program (default: beside this one)");
  ladder->add_option("--only", arguments->only, "One part")
      ->check(CLI::IsMember({"lookup", "copies", "capacity", "dead", "mapped"}));
  ladder->callback(
      [arguments, &exit_status] { exit_status = RunLadder(arguments->options, arguments->only); });

  CLI::App* echo = app.add_subcommand("echo-server", "The bare gRPC echo that calls are compared with");
  echo->add_option("socket", arguments->echo_socket, "UNIX socket to serve on")->required();
  echo->callback([arguments, &exit_status] { exit_status = ServeEcho(arguments->echo_socket); });
}

}  // namespace kvtier::bench
