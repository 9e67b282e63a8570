#include <CLI/CLI.hpp>

#include "tests/bench/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Measures kvtier.", "kvtier-bench");
  app.require_subcommand(1);
  int exit_status = 0;
#ifdef KVTIER_BENCH_LADDER
  kvtier::bench::AddLadder(app, exit_status);
#endif
  kvtier::bench::AddCodecs(app, exit_status);
  kvtier::bench::AddAttention(app, exit_status);
  kvtier::bench::AddQuality(app, exit_status);
  kvtier::bench::AddStorage(app, exit_status);
  kvtier::bench::AddServe(app, exit_status);
  CLI11_PARSE(app, argc, argv);
  return exit_status;
}
