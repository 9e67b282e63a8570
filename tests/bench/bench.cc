#include "tests/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "tests/bench/machine.h"

namespace kvtier::bench {
namespace {

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

/// JSON has no NaN or infinity.
std::string Number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace

void Report::Progress(std::string_view what) const {
  std::fprintf(stderr, "%s: %.*s\n", benchmark_.c_str(), static_cast<int>(what.size()), what.data());
}

void Report::Figure(std::string name, double value, std::string unit) {
  figures_.push_back({std::move(name), value, std::move(unit)});
}

void Report::AtMost(std::string name, double value, double bound, std::string unit) {
  checks_.push_back({name, value, bound, true, value <= bound});
  Figure(std::move(name), value, std::move(unit));
}

void Report::AtLeast(std::string name, double value, double bound, std::string unit) {
  checks_.push_back({name, value, bound, false, value >= bound});
  Figure(std::move(name), value, std::move(unit));
}

void Report::Failed(std::string_view part, const Status& status) {
  checks_.push_back({std::string(part) + ": " + status.ToString(), 1, 0, true, false});
}

int Report::Print(const Options& options) const {
  if (options.json) {
    PrintJson();
  } else {
    PrintTable();
  }
  const bool ok = std::all_of(checks_.begin(), checks_.end(), [](const Check& check) { return check.ok; });
  return ok ? 0 : 1;
}

void Report::PrintTable() const {
  for (const Field& field : DescribeMachine()) std::printf("%-10s %s\n", field.name, field.value.c_str());
  std::printf("\n%-64s %12s\n", benchmark_.c_str(), "");
  for (const Line& line : figures_) {
    std::printf("  %-62s %12.2f %s\n", line.name.c_str(), line.value, line.unit.c_str());
  }
  std::printf("\n%-64s %12s    bound\n", "checks", "");
  for (const Check& check : checks_) {
    std::printf("  %-62s %12.2f %s %-8.2f %s\n", check.name.c_str(), check.value,
                check.at_most ? "<=" : ">=", check.bound, check.ok ? "ok" : "NOT OK");
  }
}

void Report::PrintJson() const {
  std::printf("{\"benchmark\": %s, \"machine\": {", Quoted(benchmark_).c_str());
  const char* comma = "";
  for (const Field& field : DescribeMachine()) {
    std::printf("%s%s: %s", comma, Quoted(field.name).c_str(), Quoted(field.value).c_str());
    comma = ", ";
  }
  comma = "";
  std::printf("}, \"figures\": [");
  for (const Line& line : figures_) {
    std::printf("%s\n  {\"name\": %s, \"value\": %s, \"unit\": %s}", comma, Quoted(line.name).c_str(),
                Number(line.value).c_str(), Quoted(line.unit).c_str());
    comma = ",";
  }
  comma = "";
  std::printf("],\n\"checks\": [");
  for (const Check& check : checks_) {
    std::printf("%s\n  {\"name\": %s, \"value\": %s, \"bound\": %s, \"ok\": %s}", comma,
                Quoted(check.name).c_str(), Number(check.value).c_str(), Number(check.bound).c_str(),
                check.ok ? "true" : "false");
    comma = ",";
  }
  std::printf("]}\n");
}

double Samples::Percentile(double percent) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace kvtier::bench
