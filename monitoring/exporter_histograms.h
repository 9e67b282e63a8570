#pragma once

#include <prometheus/client_metric.h>

#include <vector>

#include "monitoring/metrics.h"

namespace kvtier {

// Histograms of Metrics as samples of Prometheus: cumulative, in seconds or as ratios. Any thread.

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

prometheus::ClientMetric HistogramSample(const LatencyHistogram& latency, MetricLabels labels);
prometheus::ClientMetric ErrorSample(const ErrorHistogram& errors, MetricLabels labels);
prometheus::ClientMetric AgeSample(const AgeHistogram& ages, MetricLabels labels);

}  // namespace kvtier
