#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/eval/commands.h"

namespace kvtier::eval {

std::string CacheFolder() {
  const char* const cache = std::getenv("KVTIER_CACHE");
  const char* const home = std::getenv("HOME");
  return cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/kvtier";
}

void AddCommon(CLI::App& command, CommonOptions& options, const std::vector<std::string>& methods) {
  command.add_option("--model", options.model, "GGUF file")->capture_default_str();
  command.add_option("--text", options.texts, "NAME=FILE[,FILE...], may be repeated")->capture_default_str();
  command.add_option("--json", options.json, "Write the results to this file as JSON, too")
      ->check([](const std::string& path) {  // before hours of computing
        return std::ofstream(path, std::ios::app) ? "" : path + " cannot be written";
      });
  command.add_option("--only", options.only, "Only this method, may be repeated")
      ->check(CLI::IsMember(methods));
  command.add_option("--threads", options.threads, "Of the engine")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
}

bool WriteJson(const CommonOptions& options, const std::function<std::string()>& make) {
  if (options.json.empty()) return true;
  std::ofstream file(options.json);
  file << make() << "\n";
  file.close();
  if (!file) std::fprintf(stderr, "kvtier-eval: cannot write %s\n", options.json.c_str());
  return static_cast<bool>(file);
}

bool IsWanted(const CommonOptions& options, const std::string& method) {
  return options.only.empty() ||
         std::find(options.only.begin(), options.only.end(), method) != options.only.end();
}

}  // namespace kvtier::eval
