#pragma once

#include "tests/bench/bench.h"

namespace kvtier::bench {

/// The parts of `kvtier-bench ladder`; each starts its own kvtierd. Errors: what kept a part from measuring.

/// Lookup of 512 keys beside a bare gRPC echo of the same bytes.
Status MeasureLookup(const Options& options, Report& report);
/// Put and fetch of FP16 beside memcpy over the same set; latency of single blocks.
Status MeasureCopies(const Options& options, Report& report);
/// More puts than the tiers hold, back to back: what was acknowledged must be there.
Status MeasureOverCapacity(const Options& options, Report& report);
/// Calls to a daemon that was killed, and to one that hangs, end as misses by their deadline.
Status MeasureDeadDaemon(const Options& options, Report& report);

/// Acquire and fetch of blocks on a CXL tier whose memory the client maps, beside one that it reads through
/// DRAM.
Status MeasureMappedStore(const Options& options, Report& report);

}  // namespace kvtier::bench
