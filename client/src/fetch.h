#pragma once

#include <cstdint>
#include <span>

#include "client/src/lease.h"
#include "client/src/view.h"
#include "kvtier/kvtier.h"
#include "tiers/image.h"

namespace kvtier::client {

/// Decodes blocks [first, first + results.size()) of the lease into `destination`, straight from the mapped
/// arenas. Every block gets its own result; the destination bytes of one that is not OK are invalid.
void FetchBlocks(Lease& lease, size_t first, LayerRange layers, const View& destination,
                 std::span<kvtier_block_result> results);

/// Decodes one image into `destination` (token 0 of the block at `first_token`), checking every layer against
/// its checksum and `still_valid(context)` after each. Errors: kStale when that turns false; kDataLoss and
/// kUnimplemented as ParseImage.
struct DecodedErrors {
  float k_error = 0, v_error = 0;  ///< rms over the layers
};
struct SlotGuard {
  const Arena& arena;
  uint32_t slot = 0;
  uint64_t epoch = 0;
  bool HoldsBefore() const { return arena.EpochBeforeRead(slot) == epoch; }
  bool HoldsAfter() const { return arena.EpochAfterRead(slot) == epoch; }
};
Result<DecodedErrors> DecodeImage(std::span<const std::byte> bytes, const BlockIdentity& expected,
                                  LayerRange layers, const View& destination, uint32_t first_token,
                                  const SlotGuard& guard, Stores stores = Stores::kCached);

}  // namespace kvtier::client
