#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "monitoring/metrics.h"

namespace kvtier {

struct ExporterLabels {
  std::vector<std::string> tiers;  ///< names, highest first; at most kMaxTiers
  std::string version;
};

/// Every number of `metrics` as Prometheus families, read now (relaxed). Any thread.
std::vector<prometheus::MetricFamily> CollectFamilies(const Metrics& metrics, const ExporterLabels& labels);

}  // namespace kvtier
