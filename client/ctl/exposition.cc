#include "client/ctl/exposition.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace kvtier::ctl {
namespace {

/// Reads `name="value",...}` from the front of `text` and takes it off.
std::optional<Exposition::Labels> TakeLabels(std::string_view& text) {
  Exposition::Labels labels;
  while (!text.empty() && text.front() != '}') {
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) return std::nullopt;
    std::string& value = labels[std::string(text.substr(0, equals))];
    text.remove_prefix(equals + 2);
    while (!text.empty() && text.front() != '"') {
      if (text.front() == '\\') text.remove_prefix(1);
      if (text.empty()) return std::nullopt;
      value += text.front();
      text.remove_prefix(1);
    }
    if (text.empty()) return std::nullopt;
    text.remove_prefix(1);
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  if (text.empty()) return std::nullopt;
  text.remove_prefix(1);
  return labels;
}

/// Name and sample of one line.
std::optional<std::pair<std::string, Exposition::Sample>> ParseSample(std::string_view line) {
  const size_t name_end = line.find_first_of("{ ");
  if (name_end == 0 || name_end == std::string_view::npos) return std::nullopt;
  const std::string name(line.substr(0, name_end));
  const bool labelled = line[name_end] == '{';
  line.remove_prefix(name_end + 1);
  Exposition::Sample sample;
  if (labelled) {
    std::optional<Exposition::Labels> labels = TakeLabels(line);
    if (!labels || !line.starts_with(' ')) return std::nullopt;
    sample.labels = *std::move(labels);
    line.remove_prefix(1);
  }
  const std::string number(line);
  char* end = nullptr;
  sample.value = std::strtod(number.c_str(), &end);
  if (end == number.c_str()) return std::nullopt;
  return std::pair(name, std::move(sample));
}

}  // namespace

Result<Exposition> Exposition::Parse(std::string_view text) {
  Exposition parsed;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    auto sample = ParseSample(line);
    if (!sample) return Status(Code::kDataLoss, "no sample of a metric: " + std::string(line.substr(0, 100)));
    parsed.samples_[sample->first].push_back(std::move(sample->second));
  }
  return parsed;
}

const std::vector<Exposition::Sample>& Exposition::Of(std::string_view name) const {
  static const std::vector<Sample> kNone;
  const auto found = samples_.find(name);
  return found == samples_.end() ? kNone : found->second;
}

double Exposition::Sum(std::string_view name, const Labels& labels) const {
  double sum = 0;
  for (const Sample& sample : Of(name)) {
    const bool wanted = std::ranges::all_of(labels, [&sample](const auto& label) {
      const auto found = sample.labels.find(label.first);
      return found != sample.labels.end() && found->second == label.second;
    });
    if (wanted) sum += sample.value;
  }
  return sum;
}

std::vector<std::string> Exposition::Values(std::string_view name, std::string_view label) const {
  std::vector<std::string> values;
  for (const Sample& sample : Of(name)) {
    const auto found = sample.labels.find(label);
    if (found == sample.labels.end() || std::ranges::find(values, found->second) != values.end()) continue;
    values.push_back(found->second);
  }
  return values;
}

}  // namespace kvtier::ctl
