#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "monitoring/metrics.h"
#include "tiers/base/status.h"

namespace kvtier {

struct ExporterOptions {
  std::string host = "127.0.0.1";  ///< a numeric address
  uint16_t port = 9464;            ///< 0: one that is free
  std::vector<std::string> tiers;  ///< names, highest first
  std::string version;
  /// What is wrong, in a few words; empty when nothing is. Called on the exporter's threads.
  std::function<std::string()>
      health;  ///< behind /healthz: do the threads that wait for no device make progress
  std::function<std::string()> readiness;  ///< behind /readyz: may clients come
};

/// /metrics in Prometheus' text format, /healthz and /readyz (200 "ok" or 503 and what is wrong), over HTTP.
/// Threads: two of its own, from Make to destruction; they only read. `metrics` outlives it.
class Exporter {
 public:
  /// Errors: kUnavailable when the address cannot be listened on.
  static Result<std::unique_ptr<Exporter>> Make(ExporterOptions options, const Metrics& metrics);
  virtual ~Exporter() = default;
  virtual uint16_t port() const = 0;
};

}  // namespace kvtier
