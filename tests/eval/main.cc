#include <CLI/CLI.hpp>

#include "client/engines/llamacpp/llama_engine.h"
#include "tests/eval/commands.h"

int main(int argc, char** argv) {
  CLI::App app("What the formats of kvtier cost a real model.", "kvtier-eval");
  app.require_subcommand(1);
  int exit_status = 0;
  kvtier::eval::AddQuality(app, exit_status);
  kvtier::eval::AddRetrieval(app, exit_status);
  kvtier::llamacpp::QuietLlamaLog();
  CLI11_PARSE(app, argc, argv);
  return exit_status;
}
