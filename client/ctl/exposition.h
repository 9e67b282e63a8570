#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier::ctl {

/// One scrape of a daemon's /metrics. Immutable.
class Exposition {
 public:
  using Labels = std::map<std::string, std::string, std::less<>>;
  struct Sample {
    Labels labels;
    double value = 0;
  };

  /// Of Prometheus' text format. Errors: kDataLoss for a line that is neither a comment nor a sample.
  static Result<Exposition> Parse(std::string_view text);

  const std::vector<Sample>& Of(std::string_view name) const;
  /// Of the samples that have all of `labels`; 0 where there is none.
  double Sum(std::string_view name, const Labels& labels = {}) const;
  /// The values of one label, in the order in which they come up first.
  std::vector<std::string> Values(std::string_view name, std::string_view label) const;

 private:
  std::map<std::string, std::vector<Sample>, std::less<>> samples_;
};

}  // namespace kvtier::ctl
