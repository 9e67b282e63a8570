#include "client/src/fetch.h"

#include <unistd.h>

#include <cmath>

#include "client/src/errors.h"
#include "client/src/query.h"

namespace kvtier::client {
namespace {

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
Status DecodeAndVerify(const ImageView& image, uint16_t layer, const KvLayerView& out) {
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

Status DecodeLayer(const ImageView& image, uint16_t layer, const KvLayerView& out, const SlotGuard& guard) {
  if (!guard.HoldsBefore()) return Torn();
  const Status decoded = DecodeAndVerify(image, layer, out);
  return guard.HoldsAfter() ? decoded : Torn();
}

DecodedErrors ErrorsOf(const ImageView& image, LayerRange layers) {
  double k_squares = 0, v_squares = 0;
  for (uint16_t i = 0; i < layers.count; ++i) {
    const auto layer = static_cast<uint16_t>(layers.first + i);
    k_squares += double{image.KError(layer)} * image.KError(layer);
    v_squares += double{image.VError(layer)} * image.VError(layer);
  }
  return {.k_error = static_cast<float>(std::sqrt(k_squares / layers.count)),
          .v_error = static_cast<float>(std::sqrt(v_squares / layers.count))};
}

Status DecodeImage(const ImageView& image, LayerRange layers, const View& destination, uint32_t first_token,
                   const SlotGuard& guard, Stores stores) {
  for (uint16_t i = 0; i < layers.count; ++i) {
    const auto layer = static_cast<uint16_t>(layers.first + i);
    KvLayerView out = destination.Layer(layer, first_token);
    out.stores = stores;
    KVTIER_TRY(DecodeLayer(image, layer, out, guard));
  }
  return Status::Ok();
}

Stores StoresFor(const Lease& lease, size_t first, size_t count, uint16_t layers, DType dtype) {
  const uint64_t bytes = FetchedBytes(lease, first, count, layers, dtype);
  return bytes >= StreamingBytesMin() ? Stores::kStreaming : Stores::kCached;
}

void FetchBlocks(Lease& lease, size_t first, LayerRange layers, const View& destination,
                 std::span<kvtier_block_result> results) {
  const uint64_t start = lease.blocks[first].info.position;
  const Stores stores = StoresFor(lease, first, results.size(), layers.count, destination.dtype());
  for (size_t i = 0; i < results.size(); ++i) {
    const kvtier_block_info& info = lease.blocks[first + i].info;
    const auto first_token = static_cast<uint32_t>(info.position - start);
    const Result<LeasedImage> opened = OpenBlock(lease, first + i);
    Status status = opened.status();
    if (opened.ok()) {
      status = DecodeImage(opened->block->image(), layers, destination, first_token, opened->guard(), stores);
    }
    results[i] = {};
    results[i].code = ToC(status.code());
    if (!status.ok()) {
      lease.NoteIfDamaged(first + i, status);
      Fail(status);
      continue;
    }
    const DecodedErrors errors = ErrorsOf(opened->block->image(), layers);
    results[i].precision = info.precision;
    results[i].k_error = errors.k_error;
    results[i].v_error = errors.v_error;
  }
}

}  // namespace kvtier::client
