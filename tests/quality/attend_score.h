#pragma once

#include <string>
#include <vector>

#include "codecs/codec.h"
#include "tests/quality/cache.h"

namespace kvtier::quality {

/// Relative errors of one layer's attention outputs where all but the newest tokens are in blocks.
struct AttendLayerScore {
  double decoded = 0;   ///< attention in double precision over the decoded blocks: what the format costs
  double attended = 0;  ///< the codec's own attention on its codes: format and arithmetic
  double added = 0;     ///< distance between the two, relative to the right outputs
};

struct AttendScore {
  std::string codec;
  std::vector<AttendLayerScore> layers;

  /// Roots of the mean squares over the layers.
  AttendLayerScore Overall() const;
};

/// The codec's attention (Codec::attend, at the current SIMD level) on a fixture in blocks of 64 tokens; the
/// tokens from the first query on are FP16, as an engine's newest tokens are.
Result<AttendScore> ScoreAttend(const Codec& codec, const Fixture& fixture, uint32_t query_step);

}  // namespace kvtier::quality
