// The launchers of kernels/cuda/launch.h for the fake runtime. A kernel is here its body on lanes that are
// fibers, as many as on a GPU, so that what is tested around it gets what a GPU would give.
#include "kernels/cuda/launch.h"

#include "codecs/codec.h"
#include "kernels/batch_encode.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/teams/fiber_team.h"
#include "tiers/base/check.h"
#include "tiers/cuda/checksum.h"

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

/// ThreadSanitizer takes the fibers of a thread for one growing stack: there one lane does everything.
template <typename Body>
void LaunchLanes(const LaunchShape& shape, const Body& body) {
#if defined(__SANITIZE_THREAD__)
  LaunchSerial(shape, body);
#else
  const Status status = LaunchFibers(shape, {.lanes = kBatchLanes, .order = LaneOrder::kRandom}, body);
  KVTIER_CHECK(status.ok());
#endif
}

}  // namespace

LaunchError LaunchChecksum(const ChecksumBatchArgs& batch, StreamHandle stream) {
  if (batch.count == 0) return 0;
  const auto ranges = [batch] {
    std::vector<fake_cuda::Range> found;
    for (uint32_t i = 0; i < batch.count; ++i) {
      found.push_back({.data = batch.items[i].data, .bytes = batch.items[i].bytes});
    }
    return found;
  };
  const auto body = [batch] {
    LaunchSerial(ChecksumBatchLaunch(batch), [&](const SerialTeam& team) { ChecksumBatch(team, batch); });
  };
  return fake_cuda::Launch(
      "LaunchChecksum", stream,
      {{.data = batch.items, .bytes = batch.count * sizeof(ChecksumItem)},
       {.data = batch.crcs, .bytes = batch.count * sizeof(uint32_t), .is_written = true}},
      body, ranges);
}

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
    RunRequantize(batch, [](const LaunchShape& shape, const auto& run) { LaunchLanes(shape, run); });
  };
  const uint64_t heads = uint64_t{batch.count} * batch.heads_max;
  return fake_cuda::Launch("LaunchRequantize", stream,
                           {{.data = batch.items, .bytes = batch.count * sizeof(RequantizeItem)},
                            {.data = batch.heads, .bytes = heads * sizeof(EncodedHead), .is_written = true}},
                           body, ranges);
}

}  // namespace kvtier::cuda
