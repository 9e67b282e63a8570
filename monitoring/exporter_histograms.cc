#include "monitoring/exporter_histograms.h"

#include <limits>
#include <utility>

namespace kvtier {
namespace {

using prometheus::ClientMetric;

/// `bound(i)` is the upper bound of bucket i, but of the last, which has none.
template <typename Histogram, typename Bound>
ClientMetric Cumulate(const Histogram& histogram, double sum, MetricLabels labels, const Bound& bound) {
  ClientMetric metric;
  metric.label = std::move(labels);
  uint64_t count = 0;
  for (int i = 0; i < Histogram::kBuckets; ++i) {
    count += histogram.Bucket(i);
    const bool last = i == Histogram::kBuckets - 1;
    metric.histogram.bucket.push_back(
        {.cumulative_count = count,
         .upper_bound = last ? std::numeric_limits<double>::infinity() : bound(static_cast<size_t>(i))});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = sum;
  return metric;
}

}  // namespace

ClientMetric HistogramSample(const LatencyHistogram& latency, MetricLabels labels) {
  return Cumulate(latency, static_cast<double>(latency.SumNanoseconds()) * 1e-9, std::move(labels),
                  [](size_t i) { return static_cast<double>(uint64_t{1} << i) / 1e6; });
}

ClientMetric ErrorSample(const ErrorHistogram& errors, MetricLabels labels) {
  return Cumulate(errors, errors.Sum(), std::move(labels),
                  [](size_t i) { return ErrorHistogram::kBounds[i]; });
}

ClientMetric AgeSample(const AgeHistogram& ages, MetricLabels labels) {
  return Cumulate(ages, static_cast<double>(ages.SumTenths()) / 10, std::move(labels),
                  [](size_t i) { return static_cast<double>(AgeHistogram::kBoundsSeconds[i]); });
}

}  // namespace kvtier
