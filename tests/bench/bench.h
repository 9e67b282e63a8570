#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::bench {

struct Options {
  bool quick = false;   ///< under 40 s in all, fewer rounds
  bool json = false;    ///< one object on stdout instead of the table
  std::string kvtierd;  ///< the daemon to measure; empty: beside this program
};

/// What one benchmark found: figures for people, checks against the bounds that are set for it.
/// Progress goes to stderr, so that stdout holds the result alone. Threads: one.
class Report {
 public:
  explicit Report(std::string benchmark) : benchmark_(std::move(benchmark)) {}

  void Progress(std::string_view what) const;
  void Figure(std::string name, double value, std::string unit);
  /// Figures with a bound: the benchmark fails when `value` is on the wrong side of it.
  void AtMost(std::string name, double value, double bound, std::string unit);
  void AtLeast(std::string name, double value, double bound, std::string unit);
  /// A part that could not be measured is a failed check with the reason as its name.
  void Failed(std::string_view part, const Status& status);

  /// Prints the result; returns the exit status of the program.
  int Print(const Options& options) const;

 private:
  struct Line {
    std::string name;
    double value;
    std::string unit;
  };
  struct Check {
    std::string name;
    double value;
    double bound;
    bool at_most;
    bool ok;
  };

  void PrintTable() const;
  void PrintJson() const;

  std::string benchmark_;
  std::vector<Line> figures_;
  std::vector<Check> checks_;
};

/// Samples of one quantity. Percentile takes the nearest rank; 0 without samples.
class Samples {
 public:
  void Add(double value) { values_.push_back(value); }
  double Percentile(double percent) const;
  double Median() const { return Percentile(50); }
  double Max() const { return Percentile(100); }
  double Last() const { return values_.back(); }

 private:
  std::vector<double> values_;
};

/// Seconds of a monotonic clock.
double NowSeconds();

}  // namespace kvtier::bench
