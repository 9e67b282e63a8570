#pragma once

#include <cstdint>
#include <span>

#include "client/src/leased_image.h"
#include "client/src/view.h"
#include "kvtier/kvtier.h"
#include "tiers/image.h"

namespace kvtier::client {

/// Decodes blocks [first, first + results.size()) of the lease into `destination`, straight from the mapped
/// arenas. Every block gets its own result; the destination bytes of one that is not OK are invalid.
void FetchBlocks(Lease& lease, size_t first, LayerRange layers, const View& destination,
                 std::span<kvtier_block_result> results);

/// Decodes one layer of an image, whose destination bytes are invalid when this fails. Errors: kStale when
/// the slot is no longer the guard's; kDataLoss when the layer's checksum is wrong.
Status DecodeLayer(const ImageView& image, uint16_t layer, const KvLayerView& out, const SlotGuard& guard);

/// Relative rms over the layers fetched.
struct DecodedErrors {
  float k_error = 0, v_error = 0;
};
DecodedErrors ErrorsOf(const ImageView& image, LayerRange layers);

/// Decodes layers of an image into `destination` (token 0 of the block at `first_token`). Errors: those of
/// DecodeLayer.
Status DecodeImage(const ImageView& image, LayerRange layers, const View& destination, uint32_t first_token,
                   const SlotGuard& guard, Stores stores = Stores::kCached);

/// How to write what a fetch of these blocks decodes: past the cache when it would leave nothing else there.
Stores StoresFor(const Lease& lease, size_t first, size_t count, uint16_t layers, DType dtype);

}  // namespace kvtier::client
