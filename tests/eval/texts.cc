#include "tests/eval/texts.h"

#include <fstream>
#include <iterator>
#include <sstream>

namespace kvtier::eval {

Result<Text> LoadText(const std::string& option) {
  const size_t equals = option.find('=');
  if (equals == 0 || equals == std::string::npos)
    return Status(Code::kInvalidArgument, option + " is not NAME=FILE[,FILE...]");
  Text text = {.name = option.substr(0, equals), .contents = {}};
  std::istringstream paths(option.substr(equals + 1));
  for (std::string path; std::getline(paths, path, ',');) {
    std::ifstream file(path, std::ios::binary);
    text.contents.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!file) return Status(Code::kNotFound, "cannot read " + path);
  }
  return text;
}

Result<std::vector<size_t>> WindowStarts(size_t tokens, size_t window, size_t count) {
  if (count == 0 || window == 0 || tokens / window < count)
    return Status(Code::kInvalidArgument, "a text of " + std::to_string(tokens) + " tokens has no " +
                                              std::to_string(count) + " windows of " +
                                              std::to_string(window));
  std::vector<size_t> starts;
  for (size_t i = 0; i < count; ++i) starts.push_back(count == 1 ? 0 : i * (tokens - window) / (count - 1));
  return starts;
}

}  // namespace kvtier::eval
