#include "client/ctl/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace kvtier::ctl {
namespace {

/// From the program itself to a command: itself last.
using Path = std::vector<const Command*>;
using Visit = std::function<void(const Path&)>;

void ForEachCommand(Path& path, const Visit& visit) {
  visit(path);
  for (const Command& under : path.back()->commands) {
    path.push_back(&under);
    ForEachCommand(path, visit);
    path.pop_back();
  }
}

void ForEachCommand(const Command& program, const Visit& visit) {
  Path path{&program};
  ForEachCommand(path, visit);
}

/// "/config/check"; empty for the program.
std::string NameOf(const Path& path) {
  std::string name;
  for (size_t i = 1; i < path.size(); ++i) name += '/' + path[i]->name;
  return name;
}

/// Those of a command and of the commands around it, of each name the innermost.
std::vector<const CommandOption*> OptionsIn(const Path& path) {
  std::vector<const CommandOption*> found;
  for (size_t i = path.size(); i-- > 0;) {
    for (const CommandOption& option : path[i]->options) {
      const auto same = [&option](const CommandOption* other) { return other->names == option.names; };
      if (std::ranges::none_of(found, same)) found.push_back(&option);
    }
  }
  return found;
}

std::string Join(const std::vector<std::string>& words, const char* between) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : between) + word;
  return all;
}

std::vector<std::string> NamesOf(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  return names;
}

/// With a backslash before each of `special`.
std::string Escaped(const std::string& text, std::string_view special) {
  std::string escaped;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// One word of bash and zsh.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

// ---- bash

/// Cases that say what the word before the cursor makes of the rest.
std::string BashWords(const Path& path) {
  const std::string name = NameOf(path);
  std::string cases;
  for (const Command& under : path.back()->commands) {
    cases += fmt::format("      {0}:{1}) command={0}/{1} ;;\n", name, under.name);
  }
  std::vector<std::string> valued;
  for (const CommandOption* option : OptionsIn(path)) {
    if (option->value == ValueKind::kNone) continue;
    for (const std::string& option_name : option->names) valued.push_back(name + ':' + option_name);
  }
  if (!valued.empty()) cases += fmt::format("      {}) option=$word ;;\n", Join(valued, " | "));
  return cases;
}

/// What completes a value, or an argument.
std::string BashValue(const CommandOption& option) {
  if (!option.choices.empty()) return "words=" + Quoted(Join(option.choices, " "));
  return option.value == ValueKind::kPath ? "paths=yes" : ":";
}

std::string BashCases(const Path& path) {
  const std::string name = NameOf(path);
  std::string cases;
  std::vector<std::string> options;
  for (const CommandOption* option : OptionsIn(path)) {
    options.insert(options.end(), option->names.begin(), option->names.end());
    if (option->value == ValueKind::kNone) continue;
    std::vector<std::string> patterns;
    for (const std::string& option_name : option->names) patterns.push_back(name + ':' + option_name);
    cases += fmt::format("    {}) {} ;;\n", Join(patterns, " | "), BashValue(*option));
  }
  cases += fmt::format("    {}:-) words={} ;;\n", name, Quoted(Join(options, " ")));
  const Command& command = *path.back();
  const std::string argument = !command.commands.empty()
                                   ? "words=" + Quoted(Join(NamesOf(command.commands), " "))
                               : !command.positionals.empty() ? BashValue(command.positionals.front())
                                                              : std::string(":");
  return cases + fmt::format("    {}:) {} ;;\n", name, argument);
}

// ---- zsh

std::string ZshValue(const CommandOption& option) {
  const std::string what = Escaped(option.names.back(), ":\\");
  const std::string how = !option.choices.empty()            ? '(' + Join(option.choices, " ") + ')'
                          : option.value == ValueKind::kPath ? "_files"
                                                             : " ";
  return ':' + what + ':' + how;
}

/// One argument of _arguments for each option.
std::string ZshOptions(const Path& path, const std::string& indent) {
  std::string words;
  for (const CommandOption* option : OptionsIn(path)) {
    for (const std::string& name : option->names) {
      std::string word = '(' + Join(option->names, " ") + ')' + name;
      const bool valued = option->value != ValueKind::kNone;
      if (valued && name.starts_with("--")) word += '=';
      word += '[' + Escaped(option->description, "[]\\") + ']';
      if (valued) word += ZshValue(*option);
      words += " \\\n" + indent + Quoted(word);
    }
  }
  return words;
}

/// What follows a command: its options, and its arguments or the commands under it.
std::string ZshArguments(const Path& path, const std::string& indent) {
  const Command& command = *path.back();
  std::string text = indent + "state=''\n" + indent + "_arguments -C" + ZshOptions(path, indent + "  ");
  if (command.commands.empty()) {
    for (const CommandOption& positional : command.positionals)
      text += " \\\n" + indent + "  " + Quoted(':' + ZshValue(positional));
    return text + '\n';
  }
  text += " \\\n" + indent + "  '1:command:->commands' '*::argument:->arguments'\n";
  text += indent + "case $state in\n" + indent + "  commands)\n" + indent + "    local -a commands=(";
  for (const Command& under : command.commands)
    text += '\n' + indent + "      " + Quoted(Escaped(under.name, ":\\") + ':' + under.description);
  text += ")\n" + indent + "    _describe command commands ;;\n";
  text += indent + "  arguments)\n" + indent + "    case $words[1] in\n";
  for (const Command& under : command.commands) {
    Path deeper = path;
    deeper.push_back(&under);
    text += indent + "      " + under.name + ")\n" + ZshArguments(deeper, indent + "        ");
    text += indent + "        ;;\n";
  }
  return text + indent + "    esac ;;\n" + indent + "esac\n";
}

// ---- fish

std::string FishQuoted(const std::string& text) {
  return '\'' + Escaped(text, "'\\") + '\'';
}

/// When the command line is inside `path`.
std::string FishCondition(const Path& path) {
  std::vector<std::string> conditions;
  for (size_t i = 1; i < path.size(); ++i)
    conditions.push_back("__fish_seen_subcommand_from " + path[i]->name);
  return Join(conditions, "; and ");
}

std::string FishLine(const std::string& program, const std::string& condition, const std::string& rest) {
  const std::string when = condition.empty() ? "" : " -n " + FishQuoted(condition);
  return "complete -c " + program + when + rest + '\n';
}

std::string FishOption(const CommandOption& option) {
  std::string words;
  for (const std::string& name : option.names)
    words += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  if (!option.choices.empty()) {
    words += " -x -a " + FishQuoted(Join(option.choices, " "));
  } else if (option.value != ValueKind::kNone) {
    words += option.value == ValueKind::kPath ? " -r -F" : " -x";
  }
  return words + " -d " + FishQuoted(option.description);
}

/// Whether a command around it has the same option: fish completes that everywhere.
bool IsKnownAround(const Path& path, const CommandOption& option) {
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const auto same = [&option](const CommandOption& other) { return other.names == option.names; };
    if (std::ranges::any_of(path[i]->options, same)) return true;
  }
  return false;
}

std::string FishCommand(const std::string& program, const Path& path) {
  const Command& command = *path.back();
  const std::string inside = FishCondition(path);
  std::string text;
  for (const CommandOption& option : command.options) {
    if (!IsKnownAround(path, option)) text += FishLine(program, inside, FishOption(option));
  }
  if (!command.positionals.empty()) {
    const CommandOption& first = command.positionals.front();
    if (!first.choices.empty()) {
      text += FishLine(program, inside, " -a " + FishQuoted(Join(first.choices, " ")));
    } else if (first.value == ValueKind::kPath) {
      text += FishLine(program, inside, " -F");
    }
  }
  if (command.commands.empty()) return text;
  const std::string none_yet = (inside.empty() ? "" : inside + "; and ") +
                               "not __fish_seen_subcommand_from " + Join(NamesOf(command.commands), " ");
  for (const Command& under : command.commands) {
    text += FishLine(program, none_yet, " -a " + under.name + " -d " + FishQuoted(under.description));
  }
  return text;
}

}  // namespace

std::string BashCompletion(const Command& program) {
  std::string words, cases;
  ForEachCommand(program, [&](const Path& path) {
    words += BashWords(path);
    cases += BashCases(path);
  });
  // Bash makes a word of the = between an option and its value.
  return fmt::format(R"(# Completion of {0} for bash, as `{0} completion bash` prints it.
_{0}() {{
  local word i command='' option='' words='' paths='' cur=${{COMP_WORDS[COMP_CWORD]}}
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    [[ $word != = ]] || continue
    if [[ -n $option ]]; then
      option=''
      continue
    fi
    case $command:$word in
{1}    esac
  done
  [[ $cur != = ]] || cur=''
  [[ -n $option || $cur != -* ]] || option=-
  case $command:$option in
{2}  esac
  COMPREPLY=()
  if [[ -n $paths ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  fi
}}
complete -F _{0} {0}
)",
                     program.name, words, cases);
}

std::string ZshCompletion(const Command& program) {
  // Called by name where it is autoloaded, registered where it is sourced.
  return fmt::format(R"(#compdef {0}
# Completion of {0} for zsh, as `{0} completion zsh` prints it.
_{0}() {{
  local curcontext="$curcontext" context state state_descr line
  local -A opt_args
{1}}}
if [[ $funcstack[1] == _{0} ]]; then
  _{0} "$@"
else
  compdef _{0} {0}
fi
)",
                     program.name, ZshArguments({&program}, "  "));
}

std::string FishCompletion(const Command& program) {
  std::string text =
      fmt::format("# Completion of {0} for fish, as `{0} completion fish` prints it.\n", program.name);
  text += FishLine(program.name, "", " -f");
  ForEachCommand(program, [&](const Path& path) { text += FishCommand(program.name, path); });
  return text;
}

}  // namespace kvtier::ctl
