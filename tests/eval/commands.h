#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvtier::eval {

/// Of both commands.
struct CommonOptions {
  std::string model;
  std::vector<std::string> texts;  ///< NAME=FILE[,FILE...]
  std::string json;                ///< file that the results are written to as well; empty: none
  std::vector<std::string> only;   ///< methods; empty: all
  uint32_t threads = 1;
};
/// `methods`: the names that --only may have, those of the rows that the command can give.
void AddCommon(CLI::App& command, CommonOptions& options, const std::vector<std::string>& methods);
/// Writes the text that `make` returns to options.json, where that is asked for. False, and said, when it
/// cannot.
bool WriteJson(const CommonOptions& options, const std::function<std::string()>& make);
bool IsWanted(const CommonOptions& options, const std::string& method);
/// deploy/fetch-llamacpp.sh's folder.
std::string CacheFolder();

/// KL, agreement and NLL of every method.
void AddQuality(CLI::App& app, int& exit_status);
/// Facts in a long context, asked for after every method.
void AddRetrieval(CLI::App& app, int& exit_status);

}  // namespace kvtier::eval
