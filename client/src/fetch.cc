#include "client/src/fetch.h"

#include <unistd.h>

#include <cmath>

#include "client/src/errors.h"
#include "client/src/query.h"
#include "tiers/image.h"

namespace kvtier::client {
namespace {

Status Torn() {
  return Status(Code::kStale, "the slot was given away while it was read");
}

/// What a fetch writes at least before it goes past the cache: the size of the last one, of which it would
/// leave nothing else.
uint64_t StreamingBytesMin() {
  constexpr uint64_t kUsualCacheBytes = uint64_t{32} << 20;
  static const long cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or -1 where nobody knows
  return cache_bytes > 0 ? static_cast<uint64_t>(cache_bytes) : kUsualCacheBytes;
}

/// One layer, decoded and then checked while its parts are in cache: decoders are safe on any bytes, and
/// nobody is told of the result before. A raw layer may be larger than the near caches: it is checked first,
/// which brings it as far as the copy needs.
Status DecodeLayer(const ImageView& image, uint16_t layer, const KvLayerView& out) {
  const ConstLayerParts parts = image.Parts(layer);
  const uint8_t planes = image.table[layer].planes;
  if (planes == kPlaneRaw || image.codec->id == CodecId::kRaw16) {
    KVTIER_TRY(VerifyLayer(image, layer));
    CopyRawLayer(image.identity.shape, parts.part[0], out);
    return Status::Ok();
  }
  image.codec->decode(image.identity.shape, planes, parts, out);
  return VerifyLayer(image, layer);
}

Result<DecodedErrors> FetchBlock(Lease& lease, const LeasedBlock& block, LayerRange layers,
                                 const View& destination, uint32_t first_token, Stores stores) {
  KVTIER_TRY(lease.CheckAndRenew(SteadyClock().Now()));
  // Held until the block is decoded, so that the mapping stays although the arena may be retired meanwhile.
  const std::shared_ptr<const Arena> arena = lease.connection->arenas().Find(block.arena);
  if (arena == nullptr) return Status(Code::kStale, "the arena of the block was given back");
  KVTIER_ASSIGN(const std::span<const std::byte> bytes, arena->At(block.slot, block.offset, block.bytes));
  const auto tokens = static_cast<uint16_t>(block.info.tokens);
  const BlockIdentity expected = {.key = KeyOf(block.info.key),
                                  .name_space = lease.model->name_space,
                                  .first_position = block.info.position,
                                  .shape = ShapeOf(lease.model->spec, block.info.position, tokens)};
  return DecodeImage(bytes, expected, layers, destination, first_token,
                     {.arena = *arena, .slot = block.slot, .epoch = block.slot_epoch}, stores);
}

/// What decoding `count` blocks writes.
uint64_t FetchedBytes(const Lease& lease, size_t first, size_t count, uint16_t layers, DType dtype) {
  uint64_t bytes = 0;
  for (size_t i = first; i < first + count; ++i) {
    const kvtier_block_info& info = lease.blocks[i].info;
    BlockShape shape = ShapeOf(lease.model->spec, info.position, static_cast<uint16_t>(info.tokens));
    shape.dtype = dtype;
    bytes += layers * RawLayerBytes(shape);
  }
  return bytes;
}

}  // namespace

Result<DecodedErrors> DecodeImage(std::span<const std::byte> bytes, const BlockIdentity& expected,
                                  LayerRange layers, const View& destination, uint32_t first_token,
                                  const SlotGuard& guard, Stores stores) {
  if (!guard.HoldsBefore()) return Torn();
  const Result<ImageView> image = ParseImage(bytes);
  // A slot that changes hands can look like anything: that it is stale comes first.
  if (!guard.HoldsAfter()) return Torn();
  KVTIER_TRY(image.status());
  KVTIER_TRY(MatchIdentity(*image, expected));

  double k_squares = 0, v_squares = 0;
  for (uint16_t i = 0; i < layers.count; ++i) {
    const auto layer = static_cast<uint16_t>(layers.first + i);
    KvLayerView out = destination.Layer(layer, first_token);
    out.stores = stores;
    const Status decoded = DecodeLayer(*image, layer, out);
    if (!guard.HoldsAfter()) return Torn();
    KVTIER_TRY(decoded);
    k_squares += double{image->KError(layer)} * image->KError(layer);
    v_squares += double{image->VError(layer)} * image->VError(layer);
  }
  return DecodedErrors{.k_error = static_cast<float>(std::sqrt(k_squares / layers.count)),
                       .v_error = static_cast<float>(std::sqrt(v_squares / layers.count))};
}

void FetchBlocks(Lease& lease, size_t first, LayerRange layers, const View& destination,
                 std::span<kvtier_block_result> results) {
  const uint64_t start = lease.blocks[first].info.position;
  const uint64_t bytes = FetchedBytes(lease, first, results.size(), layers.count, destination.dtype());
  const Stores stores = bytes >= StreamingBytesMin() ? Stores::kStreaming : Stores::kCached;
  for (size_t i = 0; i < results.size(); ++i) {
    const LeasedBlock& block = lease.blocks[first + i];
    const auto first_token = static_cast<uint32_t>(block.info.position - start);
    const Result<DecodedErrors> decoded = FetchBlock(lease, block, layers, destination, first_token, stores);
    kvtier_block_result& result = results[i];
    result = {};
    result.code = ToC(decoded.status().code());
    if (!decoded.ok()) {
      Fail(decoded.status());
      continue;
    }
    result.precision = block.info.precision;
    result.k_error = decoded->k_error;
    result.v_error = decoded->v_error;
  }
}

}  // namespace kvtier::client
