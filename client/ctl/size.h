#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/ctl/verbs.h"
#include "codecs/codec.h"
#include "kernels/layout.h"

namespace kvtier::ctl {

struct SizeRequest {
  BlockShape block;                                        ///< one that begins no sequence
  uint64_t hot_bytes = 0, warm_bytes = 0, cold_bytes = 0;  ///< capacities; 0: no such tier
  uint64_t segment_bytes = uint64_t{64} << 20;             ///< of the cold tier
  bool keep_tails = true;                                  ///< of the cold tier: tails = "while_room"
  double tokens_per_second = 0;                            ///< new ones, of all engines together; 0: unknown
};
/// What a tier holds when it is full of blocks in one precision.
struct TierSize {
  std::string tier;
  Precision precision = Precision::kNone;
  uint64_t capacity_bytes = 0;
  uint64_t block_bytes = 0;  ///< of the capacity, for each
  uint64_t blocks = 0;
};
/// The cold tier twice where it keeps tails: with all of them, and with none. Pure.
/// Errors: kInvalidArgument (no tier, a shape that no codec takes, a capacity in which not one block fits).
Result<std::vector<TierSize>> SizeLadder(const SizeRequest& request);

Result<std::string> SizeReport(const SizeRequest& request, Format format);

}  // namespace kvtier::ctl
