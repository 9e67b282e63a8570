#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/numerics.h"
#include "tiers/cold_tail.h"
#include "tiers/image.h"
#include "tiers/image_seal.h"
#include "tiers/layer_crew.h"
#include "tiers/place.h"

namespace kvtier {
namespace {

/// Below that a helper is hardly awake when the block is done.
constexpr uint64_t kSharedBlockBytes = uint64_t{1} << 20;
/// What a core's own cache holds on every CPU of interest. A smaller image stays in it: past it, copies
/// within it would be less than half as fast, and so would whoever reads the image next.
constexpr uint64_t kOwnCacheBytes = uint64_t{2} << 20;

/// An image under construction: where its parts go, and its table.
struct Draft {
  const Codec& codec;
  const BlockIdentity& identity;
  std::span<std::byte> out;
  LayerCrew* crew;   ///< null: nobody shares the layers
  BlockShape shape;  ///< as stored
  std::vector<LayerEntry> table;
  ImageLayout layout;

  Draft(const Codec& codec, const BlockIdentity& identity, std::span<std::byte> out, LayerCrew* crew)
      : codec(codec),
        identity(identity),
        out(out),
        crew(RawBlockBytes(identity.shape) >= kSharedBlockBytes ? crew : nullptr),
        shape(StoredShape(codec.id, identity.shape)),
        table(shape.layers) {
    KVTIER_CHECK(reinterpret_cast<uintptr_t>(out.data()) % kImageAlign == 0);
  }

  /// Lays the image out for the planes of the table. Errors: kOutOfRange.
  Status LayOut() {
    std::vector<uint8_t> planes;
    planes.reserve(table.size());
    for (const LayerEntry& entry : table) planes.push_back(entry.planes);
    layout = ComputeImageLayout(codec.id, shape, planes);
    if (layout.image_bytes <= out.size()) return Status::Ok();
    return Status(Code::kOutOfRange, "the image needs " + std::to_string(layout.image_bytes) + " bytes");
  }

  LayerParts Parts(size_t layer) const {
    LayerParts parts;
    for (int region = 0; region < kRegions; ++region) {
      const ImageLayout::Part& part = layout.layers[layer][region];
      parts.part[region] = out.subspan(part.offset, part.bytes);
    }
    return parts;
  }
  /// Copies into a part and returns the crc of what arrived.
  uint32_t Copy(std::span<const std::byte> from, std::span<std::byte> to) const {
    return layout.image_bytes > kOwnCacheBytes ? StreamAndCrc32c(from, to) : CopyAndCrc32c(from, to);
  }
  void Checksum(size_t layer) {
    const LayerParts parts = Parts(layer);
    for (int region = 0; region < kRegions; ++region) table[layer].crc[region] = Crc32c(parts.part[region]);
  }
  /// Layers that are worked on at once.
  uint32_t Places() const { return crew == nullptr ? 1 : crew->places(); }
  /// Calls body(layer, place) for every layer. Errors: that of the lowest layer that has one.
  template <typename Body>
  Status ForEachLayer(const Body& body) const;
  void WriteHeader();
};

template <typename Body>
Status Draft::ForEachLayer(const Body& body) const {
  const auto layers = static_cast<uint32_t>(table.size());
  if (crew == nullptr) {
    for (uint32_t layer = 0; layer < layers; ++layer) KVTIER_TRY(body(layer, 0));
    return Status::Ok();
  }
  std::vector<Status> statuses(layers);
  crew->ForEach(layers, [&](uint32_t layer, uint32_t place) { statuses[layer] = body(layer, place); });
  const auto failed = std::ranges::find_if(statuses, [](const Status& status) { return !status.ok(); });
  return failed == statuses.end() ? Status::Ok() : std::move(*failed);
}

void Draft::WriteHeader() {
  ImageHeader header{};
  header.magic = kImageMagic;
  header.version = kImageVersion;
  header.codec = static_cast<uint8_t>(codec.id);
  header.dtype = static_cast<uint8_t>(shape.dtype);
  header.flags = IsPlaneFamily(codec.id) ? kImageFlagRotatedV : 0;
  header.tokens = shape.tokens;
  header.layers = shape.layers;
  header.kv_heads = shape.kv_heads;
  header.k_dim = shape.k_dim;
  header.v_dim = shape.v_dim;
  header.nraw = shape.nraw;
  header.nb = shape.nb;
  header.first_position = identity.first_position;
  header.key = identity.key.bytes;
  header.name_space = identity.name_space.bytes;
  header.image_bytes = layout.image_bytes;
  header.base_bytes = layout.base_bytes;
  header.header_crc = Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(ImageHeader, header_crc)));
  header.header_crc = ContinueCrc32c(header.header_crc, std::as_bytes(std::span(table)));

  std::memcpy(out.data(), &header, sizeof(header));
  std::memcpy(out.data() + kImageHeaderBytes, table.data(), table.size() * sizeof(LayerEntry));
  const uint64_t table_end = kImageHeaderBytes + table.size() * sizeof(LayerEntry);
  std::memset(out.data() + table_end, 0, AlignUp(table_end, kImageAlign) - table_end);
}

BuiltImage Finished(Draft& draft) {
  draft.WriteHeader();
  return {.status = Status::Ok(), .image_bytes = draft.layout.image_bytes};
}

/// Needed bytes go with kOutOfRange only.
BuiltImage Failed(Status status, const Draft& draft) {
  const uint64_t needed = status.code() == Code::kOutOfRange ? draft.layout.image_bytes : 0;
  return {.status = std::move(status), .image_bytes = needed};
}

/// K and V as they come, into the base part, padding zeroed.
void StoreRawLayer(Draft& draft, size_t layer, std::span<const std::byte> raw) {
  const std::span<std::byte> base = draft.Parts(layer).part[static_cast<int>(Region::kBase)];
  KVTIER_CHECK(base.size() >= raw.size());
  const std::span<std::byte> padding = base.subspan(raw.size());
  std::ranges::fill(padding, std::byte{0});
  const uint32_t crc = draft.Copy(raw, base.first(raw.size()));
  draft.table[layer].crc[static_cast<int>(Region::kBase)] = ContinueCrc32c(crc, padding);
}

/// A layer to encode, and the type of its elements: that of the block, or fp16 where it was decoded.
struct LoadedLayer {
  LayerSource source;
  DType dtype;
};

BlockShape ShapeOfLoaded(const Draft& draft, const LoadedLayer& loaded) {
  BlockShape shape = draft.shape;
  shape.dtype = loaded.dtype;
  return shape;
}

void StoreError(const LayerError& error, LayerEntry& entry) {
  entry.error = {Fp16Out(error.k_int4), Fp16Out(error.k_int2), Fp16Out(error.v_int4), Fp16Out(error.v_int2)};
}

void StoreEncodedLayer(Draft& draft, size_t layer, const LoadedLayer& loaded) {
  const LayerError error =
      draft.codec.encode(ShapeOfLoaded(draft, loaded), loaded.source, draft.Parts(layer));
  StoreError(error, draft.table[layer]);
  draft.Checksum(layer);
}

/// Encodes every layer that load(layer, place) returns. Whether a layer can be encoded shows only when it is
/// loaded, and one that cannot be is larger and moves all that follows: then the sizes are known, and a
/// second pass writes them.
template <typename LoadLayer>
BuiltImage EncodeLayers(Draft& draft, const LoadLayer& load) {
  for (LayerEntry& entry : draft.table) entry.planes = EncodedPlanes(draft.codec, draft.shape);
  constexpr int kPasses = 2;
  for (int pass = 0; pass < kPasses; ++pass) {
    if (Status fits = draft.LayOut(); !fits.ok()) return Failed(std::move(fits), draft);
    std::atomic<bool> sizes_hold = true;
    Status status = draft.ForEachLayer([&](size_t layer, uint32_t place) -> Status {
      KVTIER_ASSIGN(const LoadedLayer loaded, load(layer, place));
      LayerEntry& entry = draft.table[layer];
      if (entry.planes == kPlaneRaw) {
        StoreRawLayer(draft, layer, loaded.source.raw);
      } else if (!LayerIsFinite(ShapeOfLoaded(draft, loaded), loaded.source)) {
        entry.planes = kPlaneRaw;
        sizes_hold = false;
      } else if (sizes_hold) {
        StoreEncodedLayer(draft, layer, loaded);
      }
      return Status::Ok();
    });
    if (!status.ok()) return Failed(std::move(status), draft);
    if (sizes_hold) return Finished(draft);
  }
  return Failed(Status(Code::kInvalidArgument, "the source changed while it was being encoded"), draft);
}

BuiltImage StoreRawBlock(Draft& draft, std::span<const std::byte> raw) {
  for (LayerEntry& entry : draft.table) entry.planes = EncodedPlanes(draft.codec, draft.shape);
  if (Status fits = draft.LayOut(); !fits.ok()) return Failed(std::move(fits), draft);
  const uint64_t layer_bytes = RawLayerBytes(draft.shape);
  Status status = draft.ForEachLayer([&](size_t layer, uint32_t) {
    StoreRawLayer(draft, layer, raw.subspan(layer * layer_bytes, layer_bytes));
    return Status::Ok();
  });
  if (!status.ok()) return Failed(std::move(status), draft);
  return Finished(draft);
}

Status CopyPart(const ImageView& source, Draft& draft, size_t layer, int region) {
  const std::span<const std::byte> from = source.Parts(static_cast<uint16_t>(layer)).part[region];
  const std::span<std::byte> to = draft.Parts(layer).part[region];
  const uint32_t crc = draft.Copy(from, to);
  draft.table[layer].crc[region] = crc;
  if (crc == source.table[layer].crc[region]) return Status::Ok();
  return Status(Code::kDataLoss,
                "image: checksum of layer " + std::to_string(layer) + ", region " + std::to_string(region));
}

/// The boost of an int2 layer, from the K tail that goes.
Status BuildBoost(const ImageView& source, Draft& draft, size_t layer) {
  constexpr int kBoost = static_cast<int>(Region::kBoost), kKTail = static_cast<int>(Region::kKTail);
  const std::span<std::byte> boost = draft.Parts(layer).part[kBoost];
  const ConstLayerParts in = source.Parts(static_cast<uint16_t>(layer));
  if (Crc32c(in.part[kKTail]) != source.table[layer].crc[kKTail]) {
    return Status(Code::kDataLoss, "image: checksum of the K tail of layer " + std::to_string(layer));
  }
  GatherBoost(draft.shape, in, boost);
  draft.table[layer].crc[kBoost] = Crc32c(boost);
  return Status::Ok();
}

/// Leaves regions out (or none: a copy). No part that stays is changed.
BuiltImage CutImage(const ImageView& source, Draft& draft) {
  const bool same = source.codec->id == draft.codec.id;
  for (size_t layer = 0; layer < draft.table.size(); ++layer) {
    const LayerEntry& from = source.table[layer];
    draft.table[layer].error = from.error;
    const bool keeps_planes = same || from.planes == kPlaneRaw;
    draft.table[layer].planes = keeps_planes ? from.planes : EncodedPlanes(draft.codec, draft.shape);
  }
  if (Status fits = draft.LayOut(); !fits.ok()) return Failed(std::move(fits), draft);
  Status status = draft.ForEachLayer([&](size_t layer, uint32_t) {
    const uint8_t gained = draft.table[layer].planes & static_cast<uint8_t>(~source.table[layer].planes);
    KVTIER_CHECK((gained & ~kPlaneBoost) == 0);
    for (int region = 0; region < kRegions; ++region) {
      if (draft.layout.layers[layer][region].bytes == 0) continue;
      const bool is_new = gained != 0 && region == static_cast<int>(Region::kBoost);
      KVTIER_TRY(is_new ? BuildBoost(source, draft, layer) : CopyPart(source, draft, layer, region));
    }
    return Status::Ok();
  });
  if (!status.ok()) return Failed(std::move(status), draft);
  return Finished(draft);
}

Fp8Scales ScalesOf(std::span<const Fp8Scales> scales, size_t layer) {
  return scales.empty() ? Fp8Scales{} : scales[layer];
}

/// Bytes that DecodeToFp16 needs: K and V with rows as wide as the wider of the two.
uint64_t DecodedLayerBytes(const BlockShape& s) {
  return uint64_t{2} * s.kv_heads * s.tokens * std::max(s.k_dim, s.v_dim) * sizeof(uint16_t);
}

/// Decodes one layer into `tile`, as an fp16 source.
std::span<const std::byte> DecodeToFp16(const ImageView& source, uint16_t layer, std::span<std::byte> tile) {
  const BlockShape& shape = source.identity.shape;
  const uint64_t rows = uint64_t{shape.kv_heads} * shape.tokens;
  const uint64_t k_row = shape.k_dim * sizeof(uint16_t), v_row = shape.v_dim * sizeof(uint16_t);
  // One view has one set of strides, so rows are spaced for the wider of the two at first.
  const uint64_t spaced_row = std::max(k_row, v_row);
  const KvLayerView view = {.k = tile.data(),
                            .v = tile.data() + rows * spaced_row,
                            .head_stride = static_cast<int64_t>(shape.tokens * spaced_row),
                            .token_stride = static_cast<int64_t>(spaced_row),
                            .channel_stride = sizeof(uint16_t)};
  source.codec->decode(shape, source.table[layer].planes, source.Parts(layer), view);
  if (k_row != v_row) {
    std::byte* packed = tile.data();
    for (uint64_t row = 0; row < rows; ++row, packed += k_row)
      std::memmove(packed, view.k + row * spaced_row, k_row);
    for (uint64_t row = 0; row < rows; ++row, packed += v_row)
      std::memmove(packed, view.v + row * spaced_row, v_row);
  }
  return tile.first(rows * (k_row + v_row));
}

/// One layer's planes out of a tail. False: they did not check out.
bool CopyTailPart(const TailView& tail, Draft& draft, size_t layer, Region region) {
  const std::span<std::byte> to = draft.Parts(layer).part[static_cast<int>(region)];
  const uint32_t crc = CopyAndCrc32c(tail.Part(layer), to);
  draft.table[layer].crc[static_cast<int>(region)] = crc;
  return crc == tail.table[layer].part_crc;
}

}  // namespace

JoinedImage JoinImage(const ImageView& base, const TailView& k_tail, const TailView* v_tail,
                      std::span<std::byte> out, LayerCrew* crew) {
  const ColdPart whole = v_tail == nullptr ? ColdPart::kKTail : ColdPart::kVTail;
  Draft draft(RungOf(whole), base.identity, out, crew);
  for (size_t layer = 0; layer < draft.table.size(); ++layer) {
    const LayerEntry& from = base.table[layer];
    draft.table[layer].error = from.error;
    draft.table[layer].planes =
        from.planes == kPlaneRaw ? kPlaneRaw : EncodedPlanes(draft.codec, draft.shape);
  }
  if (Status fits = draft.LayOut(); !fits.ok()) return {Failed(std::move(fits), draft)};
  std::atomic<bool> k_damaged = false, v_damaged = false;
  Status status = draft.ForEachLayer([&](size_t layer, uint32_t) -> Status {
    KVTIER_TRY(CopyPart(base, draft, layer, static_cast<int>(Region::kBase)));
    if (!CopyTailPart(k_tail, draft, layer, Region::kKTail)) k_damaged = true;
    if (v_tail != nullptr && !CopyTailPart(*v_tail, draft, layer, Region::kVTail)) v_damaged = true;
    return Status::Ok();
  });
  if (status.ok() && (k_damaged || v_damaged)) {
    status =
        Status(Code::kDataLoss, k_damaged ? "tail: checksum of the K tail" : "tail: checksum of the V tail");
  }
  const BuiltImage built = status.ok() ? Finished(draft) : Failed(std::move(status), draft);
  return {built, k_damaged, v_damaged};
}

BuiltImage EncodeImage(const Codec& codec, const BlockIdentity& identity, std::span<const std::byte> raw,
                       std::span<std::byte> out, AlignedBuffer& tile, LayerCrew* crew,
                       std::span<const Fp8Scales> scales) {
  Draft draft(codec, identity, out, crew);
  if (!codec.supports(draft.shape)) {
    return Failed(Status(Code::kUnimplemented, std::string(codec.name) + " cannot hold this shape"), draft);
  }
  if (raw.size() != RawBlockBytes(draft.shape)) {
    return Failed(Status(Code::kInvalidArgument, "the source has not the bytes of its shape"), draft);
  }
  if (IsRawCodec(codec.id)) return StoreRawBlock(draft, raw);

  const uint64_t layer_bytes = RawLayerBytes(draft.shape);
  const Result<std::span<std::byte>> memory = tile.Reserve(draft.Places() * layer_bytes);
  if (!memory.ok()) return Failed(memory.status(), draft);
  return EncodeLayers(draft, [&](size_t layer, uint32_t place) -> Result<LoadedLayer> {
    const std::span<std::byte> own = memory->subspan(place * layer_bytes, layer_bytes);
    std::memcpy(own.data(), raw.data() + layer * layer_bytes, layer_bytes);
    return LoadedLayer{{.raw = own, .scales = ScalesOf(scales, layer)}, draft.shape.dtype};
  });
}

BuiltImage SealImage(const Codec& codec, const BlockIdentity& identity, std::span<const EncodedLayer> layers,
                     std::span<std::byte> out) {
  Draft draft(codec, identity, out, nullptr);
  KVTIER_CHECK(layers.size() == draft.table.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    draft.table[layer].planes = layers[layer].planes;
    StoreError(layers[layer].error, draft.table[layer]);
  }
  if (Status fits = draft.LayOut(); !fits.ok()) return Failed(std::move(fits), draft);
  for (size_t layer = 0; layer < layers.size(); ++layer) draft.Checksum(layer);
  return Finished(draft);
}

bool CanRequantize(CodecId from, const Codec& to, const BlockShape& shape) {
  if (CanCut(from, to.id)) return true;
  const bool may_encode = IsRawCodec(from) || (from == CodecId::kKv8 && IsPlaneFamily(to.id));
  return may_encode && to.supports(StoredShape(to.id, shape));
}

BuiltImage RequantizeImage(const ImageView& source, const Codec& codec, const BlockIdentity& identity,
                           std::span<std::byte> out, AlignedBuffer& tile, LayerCrew* crew,
                           std::span<const Fp8Scales> scales) {
  Draft draft(codec, identity, out, crew);
  KVTIER_CHECK(source.identity.shape == StoredShape(source.codec->id, identity.shape));
  if (!CanRequantize(source.codec->id, codec, identity.shape)) {
    return Failed(Status(Code::kFailedPrecondition, "would have to decode a quantized block"), draft);
  }
  if (CanCut(source.codec->id, codec.id)) return CutImage(source, draft);

  const bool decodes = !IsRawCodec(source.codec->id);
  const uint64_t tile_bytes = decodes ? DecodedLayerBytes(draft.shape) : 0;
  const Result<std::span<std::byte>> memory = tile.Reserve(draft.Places() * tile_bytes);
  if (!memory.ok()) return Failed(memory.status(), draft);
  return EncodeLayers(draft, [&](size_t index, uint32_t place) -> Result<LoadedLayer> {
    const auto layer = static_cast<uint16_t>(index);
    KVTIER_TRY(VerifyLayer(source, layer));
    if (decodes && source.table[layer].planes != kPlaneRaw) {
      const std::span<std::byte> own = memory->subspan(place * tile_bytes, tile_bytes);
      return LoadedLayer{{.raw = DecodeToFp16(source, layer, own)}, DType::kFp16};
    }
    const std::span<const std::byte> base = source.Parts(layer).part[static_cast<int>(Region::kBase)];
    return LoadedLayer{{.raw = base.first(RawLayerBytes(draft.shape)), .scales = ScalesOf(scales, layer)},
                       draft.shape.dtype};
  });
}

}  // namespace kvtier
