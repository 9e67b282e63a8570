#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvtier::ctl {

/// What the value of an option is, for a shell that completes it.
enum class ValueKind : uint8_t { kNone, kWord, kPath };

struct CommandOption {
  std::vector<std::string> names;  ///< as typed: "-h", "--help"; of a positional its one name, "TIER"
  std::string description;
  ValueKind value = ValueKind::kNone;
  std::vector<std::string> choices;  ///< all its values; empty: too many
};

/// A command of a command line, without what is hidden: what shells complete.
struct Command {
  std::string name;
  std::string description;
  std::vector<CommandOption> options;  ///< its own; those of the commands around it are good in it too
  std::vector<CommandOption> positionals;
  std::vector<Command> commands;
};

/// As CLI11 parses it: one source, so that shells complete what the program takes.
Command CommandTree(const CLI::App& app);

}  // namespace kvtier::ctl
