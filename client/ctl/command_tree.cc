#include "client/ctl/command_tree.h"

#include <CLI/CLI.hpp>

namespace kvtier::ctl {
namespace {

/// What a check on a set of values tells of itself: "TEXT:{fp16,bf16,fp8}".
std::vector<std::string> ChoicesOf(const std::string& type_name) {
  const size_t open = type_name.find('{'), close = type_name.find('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return CLI::detail::split(type_name.substr(open + 1, close - open - 1), ',');
}

ValueKind ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return ValueKind::kNone;
  const std::string type = option.get_type_name();
  return type == "PATH" || type == "FILE" || type == "FOLDER" ? ValueKind::kPath : ValueKind::kWord;
}

CommandOption OptionOf(const CLI::Option& option) {
  CommandOption found{.names = {},
                      .description = option.get_description(),
                      .value = ValueOf(option),
                      .choices = ChoicesOf(option.get_type_name())};
  for (const std::string& name : option.get_snames()) found.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) found.names.push_back("--" + name);
  if (option.get_positional()) found.names = {option.get_name(true)};
  return found;
}

}  // namespace

Command CommandTree(const CLI::App& app) {
  Command command{.name = app.get_name(),
                  .description = app.get_description(),
                  .options = {},
                  .positionals = {},
                  .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? command.positionals : command.options).push_back(OptionOf(*option));
  }
  for (const CLI::App* under : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!under->get_group().empty()) command.commands.push_back(CommandTree(*under));
  }
  return command;
}

}  // namespace kvtier::ctl
