// The launchers of kernels/cuda/launch.h for the fake runtime. What a kernel computes is here the business of
// the host's codecs: the code around the launches is what is tested, the kernels' bodies have tests of their
// own.
#include "kernels/cuda/launch.h"

#include "codecs/codec.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tiers/base/check.h"

namespace kvtier::cuda {
namespace {

CodecId CodecOf(const CodedLayer<uint8_t>& layer) {
  if (layer.coding == LayerCoding::kKv8) return CodecId::kKv8;
  KVTIER_CHECK(layer.coding == LayerCoding::kPlanes);
  if (layer.k_tail == nullptr) return CodecId::kKv2p;
  return layer.v_tail == nullptr ? CodecId::kKv42 : CodecId::kKv4p;
}

/// The parts of a layer in `codec`, with their sizes.
LayerParts PartsOf(const CodedLayer<uint8_t>& layer, const Codec& codec) {
  uint8_t* const begins[] = {layer.base, layer.boost, layer.k_tail, layer.v_tail};
  LayerParts parts;
  for (int region = 0; region < kRegions; ++region) {
    const uint64_t bytes =
        PartBytes(codec.id, layer.shape, EncodedPlanes(codec, layer.shape), static_cast<Region>(region));
    KVTIER_CHECK((bytes == 0) == (begins[region] == nullptr));
    parts.part[region] = {reinterpret_cast<std::byte*>(begins[region]), bytes};
  }
  return parts;
}

/// The base of a source layer.
std::span<const std::byte> BaseOf(const CodedLayer<const uint8_t>& layer) {
  KVTIER_CHECK(layer.coding != LayerCoding::kPlanes);
  const Codec& kv8 = *FindCodec(CodecId::kKv8);
  const uint64_t bytes = layer.coding == LayerCoding::kRaw
                             ? RawLayerBytes(layer.shape)
                             : PartBytes(kv8.id, layer.shape, EncodedPlanes(kv8, layer.shape), Region::kBase);
  return {reinterpret_cast<const std::byte*>(layer.base), bytes};
}

/// kv8 as fp16, in rows of one length.
std::vector<std::byte> Decode(const CodedLayer<const uint8_t>& layer) {
  const BlockShape& shape = layer.shape;
  KVTIER_CHECK(shape.k_dim == shape.v_dim);
  const uint64_t row = shape.k_dim * sizeof(uint16_t), half = row * shape.tokens * shape.kv_heads;
  std::vector<std::byte> raw(2 * half);
  const Codec& kv8 = *FindCodec(CodecId::kKv8);
  kv8.decode(shape, EncodedPlanes(kv8, shape), {{BaseOf(layer)}},
             {.k = raw.data(),
              .v = raw.data() + half,
              .head_stride = static_cast<int64_t>(shape.tokens * row),
              .token_stride = static_cast<int64_t>(row),
              .channel_stride = sizeof(uint16_t)});
  return raw;
}

/// All of a layer's errors in its first head.
void Encode(const RequantizeItem& item, EncodedHead* heads) {
  const Codec& codec = *FindCodec(CodecOf(item.target));
  LayerSource source{.raw = BaseOf(item.source), .scales = item.source.scales};
  BlockShape shape = item.target.shape;
  std::vector<std::byte> decoded;
  if (item.source.coding == LayerCoding::kKv8) {
    decoded = Decode(item.source);
    source = {.raw = decoded, .scales = {}};
    shape.dtype = DType::kFp16;
  }
  const bool fits = LayerIsFinite(shape, source);
  for (uint32_t head = 0; head < item.target.shape.kv_heads; ++head)
    heads[head] = {.k = {}, .v = {}, .fits = 1};
  if (!fits) {
    heads[0].fits = 0;
    return;
  }
  const LayerError error = codec.encode(shape, source, PartsOf(item.target, codec));
  const auto square = [](float value) { return double{value} * value; };
  heads[0].k = {.square = 1, .int4 = square(error.k_int4), .int2 = square(error.k_int2)};
  heads[0].v = {.square = 1, .int4 = square(error.v_int4), .int2 = square(error.v_int2)};
}

}  // namespace

LaunchError LaunchRequantize(const RequantizeBatchArgs& batch, StreamHandle stream) {
  if (batch.count == 0) return 0;
  const auto ranges = [batch] {
    std::vector<fake_cuda::Range> found;
    for (uint32_t i = 0; i < batch.count; ++i) {
      const RequantizeItem& item = batch.items[i];
      found.push_back({.data = item.source.base, .bytes = BaseOf(item.source).size()});
      for (const std::span<std::byte> part : PartsOf(item.target, *FindCodec(CodecOf(item.target))).part) {
        found.push_back({.data = part.data(), .bytes = part.size(), .is_written = true});
      }
    }
    return found;
  };
  const auto body = [batch] {
    for (uint32_t i = 0; i < batch.count; ++i) {
      Encode(batch.items[i], batch.heads + uint64_t{i} * batch.heads_max);
    }
  };
  const uint64_t heads = uint64_t{batch.count} * batch.heads_max;
  return fake_cuda::Launch("LaunchRequantize", stream,
                           {{.data = batch.items, .bytes = batch.count * sizeof(RequantizeItem)},
                            {.data = batch.heads, .bytes = heads * sizeof(EncodedHead), .is_written = true}},
                           body, ranges);
}

}  // namespace kvtier::cuda
