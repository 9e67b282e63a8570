#include "tiers/cuda/gpu_encoder.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "codecs/image_layout.h"
#include "codecs/relative_rms.h"
#include "kernels/cuda/launch.h"
#include "tiers/image_seal.h"
#include "tiers/place.h"

namespace kvtier {
namespace {

constexpr uint64_t kImageSpacing = 256;  ///< images in device memory begin where copies run at full speed

LayerError ErrorOf(const EncodedHead& sum) {
  return {.k_int4 = RelativeRms(sum.k.int4, sum.k.square),
          .k_int2 = RelativeRms(sum.k.int2, sum.k.square),
          .v_int4 = RelativeRms(sum.v.int4, sum.v.square),
          .v_int2 = RelativeRms(sum.v.int2, sum.v.square)};
}

/// Of one launch.
struct LaneBytes {
  uint64_t items, checks, crcs, heads, images;
  explicit LaneBytes(const GpuEncoderOptions& options)
      : items(uint64_t{options.layers_per_launch} * sizeof(RequantizeItem)),
        checks(uint64_t{options.layers_per_launch} * sizeof(ChecksumItem)),
        crcs(uint64_t{options.layers_per_launch} * sizeof(uint32_t)),
        heads(uint64_t{options.heads_per_launch} * sizeof(EncodedHead)),
        images(options.image_bytes) {}
};

/// Where the parts of an image begin: header and table are the host's.
uint64_t PartsBegin(const BlockShape& shape) {
  return AlignUp(kImageHeaderBytes + kLayerEntryBytes * shape.layers, kImageAlign);
}

}  // namespace

/// An order on its way.
struct GpuEncoder::Work {
  GpuEncodeOrder* order = nullptr;
  BlockShape shape;  ///< as the image states it
  std::vector<EncodedLayer> layers;
  ImageLayout layout;
  uint64_t image_offset = 0;  ///< in the lane's images
  uint32_t first_item = 0;    ///< in the lane's items, one for each layer that is encoded
  uint32_t first_check = 0;   ///< in the lane's checks
  bool is_settled = false;    ///< nothing more is to be done

  explicit Work(GpuEncodeOrder& of) : order(&of), shape(StoredShape(of.codec->id, of.identity.shape)) {
    KVTIER_CHECK(of.layers.size() == shape.layers && of.codec->supports(shape));
    KVTIER_CHECK(of.checks.empty() || of.checks.size() == of.layers.size());
    layers.assign(shape.layers, {.planes = EncodedPlanes(*of.codec, shape)});
  }
  void Settle(BuiltImage built) {
    order->built = std::move(built);
    is_settled = true;
  }
  void LayOut() {
    std::vector<uint8_t> planes;
    for (const EncodedLayer& layer : layers) planes.push_back(layer.planes);
    layout = ComputeImageLayout(order->codec->id, shape, planes);
    if (layout.image_bytes <= order->out.size()) return;
    Settle({Status(Code::kOutOfRange, "the image needs " + std::to_string(layout.image_bytes) + " bytes"),
            layout.image_bytes});
  }
  /// The layer where it goes in device memory, in an image that begins at `image`.
  CodedLayer<uint8_t> Target(uint16_t layer, std::byte* image) const {
    const auto part = [&](Region region) -> uint8_t* {
      const ImageLayout::Part& at = layout.layers[layer][static_cast<int>(region)];
      return at.bytes == 0 ? nullptr : reinterpret_cast<uint8_t*>(image + at.offset);
    };
    return {.shape = shape,
            .coding = order->codec->id == CodecId::kKv8 ? LayerCoding::kKv8 : LayerCoding::kPlanes,
            .scales = {},
            .base = part(Region::kBase),
            .boost = part(Region::kBoost),
            .k_tail = part(Region::kKTail),
            .v_tail = part(Region::kVTail)};
  }
  /// False: the source is damaged, and so is what was made of it.
  bool TakeChecksums(std::span<const uint32_t> crcs) {
    for (size_t i = 0; i < order->checks.size(); ++i) {
      if (crcs[first_check + i] == order->checks[i].crc) continue;
      Settle({Status(Code::kDataLoss, "image on the GPU: checksum of layer " + std::to_string(i)), 0});
      return false;
    }
    return true;
  }
  /// Takes what the kernel found. A layer that cannot be encoded is larger and moves all that follows: false,
  /// and the image is to be made anew, or, where the engine's numbers are not there to be kept, never.
  bool TakeFindings(std::span<const EncodedHead> heads, uint32_t heads_max) {
    uint64_t item = first_item;
    bool sizes_hold = true;
    for (size_t i = 0; i < layers.size(); ++i) {
      EncodedLayer& layer = layers[i];
      if (layer.planes == kPlaneRaw) continue;
      const EncodedHead sum = SumHeads(&heads[item++ * heads_max], shape.kv_heads);
      layer.error = sum.fits != 0 ? ErrorOf(sum) : LayerError{};
      if (sum.fits != 0) continue;
      layer.planes = kPlaneRaw;
      sizes_hold = false;
      if (order->layers[i].coding == LayerCoding::kRaw) continue;
      Settle({Status(Code::kFailedPrecondition,
                     "layer " + std::to_string(i) + " decodes to what no encoding takes"),
              0});
      return false;
    }
    return sizes_hold;
  }
};

Result<std::unique_ptr<GpuEncoder>> GpuEncoder::Make(CudaDevice& device, const GpuEncoderOptions& options) {
  std::unique_ptr<GpuEncoder> encoder(new GpuEncoder(device, options));
  KVTIER_ASSIGN(encoder->stream_, device.MakeStream());
  KVTIER_ASSIGN(encoder->transfers_, GpuTransfers::Make(device));
  const LaneBytes bytes(options);
  for (Lane& lane : encoder->lanes_) {
    KVTIER_ASSIGN(lane.host_items, device.AllocatePinned(bytes.items));
    KVTIER_ASSIGN(lane.host_checks, device.AllocatePinned(bytes.checks));
    KVTIER_ASSIGN(lane.items, device.Allocate(bytes.items));
    KVTIER_ASSIGN(lane.checks, device.Allocate(bytes.checks));
    KVTIER_ASSIGN(lane.crcs, device.Allocate(bytes.crcs));
    KVTIER_ASSIGN(lane.heads, device.Allocate(bytes.heads));
    KVTIER_ASSIGN(lane.images, device.Allocate(bytes.images));
    KVTIER_ASSIGN(lane.encoded, device.MakeEvent(EventSharing::kThisProcess));
  }
  return encoder;
}

uint64_t GpuEncoder::DeviceBytes(const GpuEncoderOptions& options) {
  const LaneBytes bytes(options);
  return std::tuple_size_v<decltype(lanes_)> *
         (bytes.items + bytes.checks + bytes.crcs + bytes.heads + bytes.images);
}

GpuEncoder::~GpuEncoder() {
  if (stream_ == nullptr || lanes_[0].encoded == nullptr) return;  // Make failed before there was any work
  Drain().IgnoreBecause("a device that does not answer is lost, and keeps its memory");
}

void GpuEncoder::Encode(std::span<GpuEncodeOrder> orders) {
  std::vector<Work> works;
  works.reserve(orders.size());
  for (GpuEncodeOrder& order : orders) works.emplace_back(order);
  EncodeAll(works);  // then, once, those that turned out to be larger
  EncodeAll(works);
  for (Work& work : works) {
    if (!work.is_settled) work.Settle({Status(Code::kInternal, "a layer changed while it was encoded"), 0});
  }
}

void GpuEncoder::EncodeAll(std::span<Work> works) {
  for (Work& work : works) {
    if (!work.is_settled) work.LayOut();
  }
  Status status;
  Lane* under_way = nullptr;
  auto next = works.begin();
  for (size_t round = 0; status.ok(); ++round) {
    Lane& lane = lanes_[round % lanes_.size()];
    while (next != works.end() && (next->is_settled || Take(lane, *next))) ++next;
    if (!lane.works.empty()) status = Start(lane);
    // The device encodes these while the host takes in those before them.
    if (status.ok() && under_way != nullptr) status = Finish(*under_way);
    under_way = lane.works.empty() ? nullptr : &lane;
    if (under_way == nullptr) break;
  }
  if (status.ok()) return;
  const Status drained = Drain();
  if (!drained.ok()) status = drained;
  for (Lane& lane : lanes_) lane.works.clear();
  for (Work& work : works) {
    if (!work.is_settled) work.Settle({status, 0});
  }
}

bool GpuEncoder::Take(Lane& lane, Work& work) const {
  const uint64_t bytes = AlignUp(work.layout.image_bytes, kImageSpacing);
  const auto layers = static_cast<uint32_t>(work.layers.size());
  const auto fits = [&](uint64_t images, uint64_t all_layers, uint64_t heads_max) {
    return images <= options_.image_bytes && all_layers <= options_.layers_per_launch &&
           all_layers * heads_max <= options_.heads_per_launch;
  };
  if (!fits(bytes, layers, work.shape.kv_heads)) {
    work.Settle({Status(Code::kResourceExhausted, "the block is larger than the encoder's memory"), 0});
    return true;
  }
  if (lane.works.empty()) lane.used_bytes = lane.layers = lane.checked = lane.heads_max = 0;
  const uint32_t taken = std::max(lane.layers, lane.checked);
  if (!fits(lane.used_bytes + bytes, taken + layers,
            std::max<uint32_t>(lane.heads_max, work.shape.kv_heads))) {
    return false;
  }
  work.image_offset = lane.used_bytes;
  work.first_item = lane.layers;
  work.first_check = lane.checked;
  lane.checked += static_cast<uint32_t>(work.order->checks.size());
  lane.used_bytes += bytes;
  lane.layers += static_cast<uint32_t>(std::ranges::count_if(
      work.layers, [](const EncodedLayer& layer) { return layer.planes != kPlaneRaw; }));
  lane.heads_max = std::max<uint32_t>(lane.heads_max, work.shape.kv_heads);
  lane.works.push_back(&work);
  return true;
}

Status GpuEncoder::Start(Lane& lane) {
  KVTIER_TRY(QueueChecks(lane));
  KVTIER_TRY(QueueLayers(lane));
  return device_.Record(lane.encoded.get(), stream());
}

Status GpuEncoder::QueueChecks(Lane& lane) {
  auto* items = reinterpret_cast<ChecksumItem*>(lane.host_checks.data());
  uint32_t count = 0;
  for (const Work* work : lane.works) {
    for (size_t i = 0; i < work->order->checks.size(); ++i) {
      items[count++] = {.data = work->order->layers[i].base, .bytes = work->order->checks[i].bytes};
    }
  }
  KVTIER_CHECK(count == lane.checked);
  if (count == 0) return Status::Ok();
  KVTIER_TRY(device_.CopyToDevice(lane.checks.data(), lane.host_checks.span().first(count * sizeof(*items)),
                                  stream()));
  const ChecksumBatchArgs batch = {.items = reinterpret_cast<const ChecksumItem*>(lane.checks.data()),
                                   .count = count,
                                   .crcs = reinterpret_cast<uint32_t*>(lane.crcs.data())};
  return device_.Launch("LaunchChecksum", stream(),
                        [&](void* handle) { return cuda::LaunchChecksum(batch, handle); });
}

Status GpuEncoder::QueueLayers(Lane& lane) {
  auto* items = reinterpret_cast<RequantizeItem*>(lane.host_items.data());
  uint32_t count = 0;
  for (const Work* work : lane.works) {
    std::byte* const image = lane.images.data() + work->image_offset;
    for (uint16_t layer = 0; layer < work->layers.size(); ++layer) {
      const CodedLayer<const uint8_t>& source = work->order->layers[layer];
      const CodedLayer<uint8_t> target = work->Target(layer, image);
      if (work->layers[layer].planes != kPlaneRaw) {
        items[count++] = {.source = source, .target = target};
        continue;
      }
      // The engine's own numbers, as a raw image has them.
      const uint64_t bytes = work->layout.layers[layer][static_cast<int>(Region::kBase)].bytes;
      KVTIER_CHECK(source.coding == LayerCoding::kRaw);
      KVTIER_TRY(device_.CopyOnDevice(reinterpret_cast<std::byte*>(target.base),
                                      reinterpret_cast<const std::byte*>(source.base), bytes, stream()));
    }
  }
  KVTIER_CHECK(count == lane.layers);
  if (count == 0) return Status::Ok();
  KVTIER_TRY(device_.CopyToDevice(lane.items.data(), lane.host_items.span().first(count * sizeof(*items)),
                                  stream()));
  const RequantizeBatchArgs batch = {.items = reinterpret_cast<const RequantizeItem*>(lane.items.data()),
                                     .count = count,
                                     .heads_max = lane.heads_max,
                                     .heads = reinterpret_cast<EncodedHead*>(lane.heads.data())};
  return device_.Launch("LaunchRequantize", stream(),
                        [&](void* handle) { return cuda::LaunchRequantize(batch, handle); });
}

Status GpuEncoder::Finish(Lane& lane) {
  std::vector<EncodedHead> heads(uint64_t{lane.layers} * lane.heads_max);
  std::vector<uint32_t> crcs(lane.checked);
  std::vector<GpuDownload> downloads;
  downloads.push_back({.source = lane.heads.data(), .target = std::as_writable_bytes(std::span(heads))});
  downloads.push_back({.source = lane.crcs.data(), .target = std::as_writable_bytes(std::span(crcs))});
  for (const Work* work : lane.works) {
    const uint64_t begin = PartsBegin(work->shape), end = work->layout.image_bytes;
    downloads.push_back({.source = lane.images.data() + work->image_offset + begin,
                         .target = work->order->out.subspan(begin, end - begin)});
  }
  KVTIER_TRY(device_.Await(transfers_->stream(), lane.encoded.get()));
  KVTIER_TRY(transfers_->Download(downloads));
  for (Work* work : lane.works) {
    if (!work->TakeChecksums(crcs) || !work->TakeFindings(heads, lane.heads_max)) continue;
    work->Settle(SealImage(*work->order->codec, work->order->identity, work->layers, work->order->out));
  }
  lane.works.clear();
  return Status::Ok();
}

Status GpuEncoder::Drain() {
  KVTIER_TRY(device_.Usable());
  Status drained = device_.Record(lanes_[0].encoded.get(), stream());
  if (drained.ok()) drained = device_.WaitFor(lanes_[0].encoded.get());
  return drained.ok() ? drained : device_.Lose(drained);
}

}  // namespace kvtier
