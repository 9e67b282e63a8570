#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/bench/commands.h"

namespace kvtier::bench {
namespace {

/// Becomes the script; returns when it cannot.
int Become(std::vector<std::string> arguments) {
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  ::execv(words[0], words.data());
  std::fprintf(stderr, "kvtier-bench: %s: %s\n", words[0], std::strerror(errno));
  return 1;
}

}  // namespace

void AddServe(CLI::App& app, int& exit_status) {
  CLI::App* serve =
      app.add_subcommand("serve",
                         "Load of multi-turn clients on the OpenAI server at --url: first token, "
                         "tokens computed again, hits by tier; serve --help has its options");
  // All of them are the script's own, --help too.
  serve->set_help_flag();
  serve->prefix_command();
  serve->callback([serve, &exit_status] {
    std::vector<std::string> arguments = {KVTIER_SERVE_SCRIPT, "load"};
    for (std::string& argument : serve->remaining()) arguments.push_back(std::move(argument));
    exit_status = Become(std::move(arguments));
  });
}

}  // namespace kvtier::bench
