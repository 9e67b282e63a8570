#include "tests/bench/codec_work.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "codecs/sections.h"
#include "kernels/numerics.h"
#include "tests/bench/interleave.h"
#include "tiers/crc32c.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kSeed = 1;

uint32_t ElementBytes(Destination destination) {
  if (destination == Destination::kE4m3) return 1;
  return destination == Destination::kFp32 ? 4 : 2;
}

DType DTypeOf(Destination destination) {
  if (destination == Destination::kBf16) return DType::kBf16;
  if (destination == Destination::kE4m3) return DType::kE4m3;
  return destination == Destination::kFp32 ? DType::kFp32 : DType::kFp16;
}

/// Bytes of one layer in `codec`, all parts.
uint64_t LayerImageBytes(const Codec& codec, const BlockShape& shape) {
  uint64_t bytes = 0;
  for (int region = 0; region < kRegions; ++region)
    bytes += PartBytes(codec.id, shape, EncodedPlanes(codec, shape), static_cast<Region>(region));
  return bytes;
}

/// Normally distributed values, K around `k_mean`; FP8 codes of moderate size, none of them NaN.
void FillLayer(const BlockShape& shape, float k_mean, std::span<std::byte> layer) {
  std::mt19937 rng(kSeed);
  std::normal_distribution<float> normal;
  if (DTypeBytes(shape.dtype) == 1) {
    for (std::byte& code : layer) code = static_cast<std::byte>(rng() & 0xB7);
    return;
  }
  const size_t k_bytes = size_t{2} * shape.kv_heads * shape.tokens * shape.k_dim;
  for (size_t at = 0; at < layer.size(); at += 2) {
    const float value = normal(rng) + (at < k_bytes ? k_mean : 0);
    Store16(layer.data() + at, shape.dtype == DType::kBf16 ? Bf16FromFp32(value) : Fp16FromFp32(value));
  }
}

}  // namespace

const char* DestinationName(Destination destination) {
  switch (destination) {
    case Destination::kContiguous:
      return "contiguous";
    case Destination::kPaged:
      return "paged";
    case Destination::kRotatedV:
      return "rotated V";
    case Destination::kBf16:
      return "bf16";
    case Destination::kFp32:
      return "fp32";
    case Destination::kE4m3:
      return "e4m3";
  }
  return "";
}

std::string ShapeName(const Shape& shape) {
  return std::to_string(shape.heads) + "x" + std::to_string(shape.dim) + " T" + std::to_string(shape.tokens);
}

std::vector<DType> SourcesOf(const Codec& codec) {
  std::vector<DType> sources;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3})
    if (codec.supports(LayerShapeOf(codec, kCodecShapes[0], dtype))) sources.push_back(dtype);
  return sources;
}

BlockShape LayerShapeOf(const Codec& codec, const Shape& s, DType source) {
  BlockShape shape = {.layers = 1,
                      .kv_heads = s.heads,
                      .k_dim = s.dim,
                      .v_dim = s.dim,
                      .tokens = s.tokens,
                      .dtype = source,
                      .nraw = 0,
                      .nb = static_cast<uint8_t>(s.dim / 8 * 4)};
  if (!codec.supports(shape)) shape.nb = 0;
  return shape;
}

Result<CodecWork> CodecWork::Make(const Codec& codec, const BlockShape& shape, uint32_t layers,
                                  float k_mean) {
  KVTIER_CHECK(codec.supports(shape) && shape.layers == 1);
  CodecWork work;
  work.codec_ = &codec;
  work.shape_ = shape;
  work.layers_ = layers;
  KVTIER_TRY(work.Allocate());

  FillLayer(shape, k_mean, work.SourceOf(0));
  codec.encode(shape, {.raw = work.SourceOf(0)}, work.PartsAt(work.image_bytes_, codec, 0));
  for (uint32_t layer = 1; layer < layers; ++layer) {
    std::memcpy(work.SourceOf(layer).data(), work.source_bytes_.data(), work.SourceOf(0).size());
    std::memcpy(work.image_bytes_.data() + layer * work.image_layer_bytes_, work.image_bytes_.data(),
                work.image_layer_bytes_);
  }
  for (const std::span<const std::byte> part : work.Encoded(0).part) work.crcs_.push_back(Crc32c(part));
  return work;
}

Status CodecWork::Allocate() {
  fp16_layer_bytes_ = RawLayerBytes(shape_) / DTypeBytes(shape_.dtype) * 2;
  image_layer_bytes_ = LayerImageBytes(*codec_, shape_);
  // Enough for a yardstick of the widest destination, whatever the source itself has.
  const uint64_t widest_bytes = fp16_layer_bytes_ * 2 * layers_;
  KVTIER_ASSIGN(source_bytes_, source_.Reserve(widest_bytes));
  KVTIER_ASSIGN(image_bytes_, images_.Reserve(image_layer_bytes_ * layers_));
  KVTIER_ASSIGN(target_bytes_, targets_.Reserve(image_layer_bytes_ * layers_));
  KVTIER_ASSIGN(destination_bytes_, destination_.Reserve(widest_bytes));
  for (const auto memory : {source_bytes_, image_bytes_, target_bytes_, destination_bytes_})
    TouchPages(memory);

  const uint32_t layer_pages = (shape_.tokens + kPageTokens - 1) / kPageTokens;
  page_table_.resize(size_t{layer_pages} * layers_);
  std::iota(page_table_.begin(), page_table_.end(), 0);
  std::shuffle(page_table_.begin(), page_table_.end(), std::mt19937(kSeed));
  return Status::Ok();
}

std::span<std::byte> CodecWork::SourceOf(uint32_t layer) const {
  return source_bytes_.subspan(layer * RawLayerBytes(shape_), RawLayerBytes(shape_));
}

LayerParts CodecWork::PartsAt(std::span<std::byte> images, const Codec& codec, uint32_t layer) const {
  LayerParts parts;
  std::byte* at = images.data() + layer * image_layer_bytes_;
  for (int region = 0; region < kRegions; ++region) {
    const uint64_t bytes =
        PartBytes(codec.id, shape_, EncodedPlanes(codec, shape_), static_cast<Region>(region));
    parts.part[region] = {at, bytes};
    at += bytes;
  }
  return parts;
}

ConstLayerParts CodecWork::Encoded(uint32_t layer) const {
  const LayerParts parts = PartsAt(image_bytes_, *codec_, layer);
  ConstLayerParts in;
  std::copy(std::begin(parts.part), std::end(parts.part), std::begin(in.part));
  return in;
}

/// Contiguous: [layer][K, V][head][token][channel]. Paged: pages of 16 tokens in random order,
/// [page][K, V][slot][head][channel], as an engine keeps them.
KvLayerView CodecWork::ViewOf(uint32_t layer, Destination destination) const {
  const int64_t element = ElementBytes(destination), row = shape_.k_dim * element;
  KvLayerView view = {.channel_stride = element, .dtype = DTypeOf(destination)};
  if (destination == Destination::kPaged) {
    const int64_t plane = kPageTokens * shape_.kv_heads * row;
    view.k = destination_bytes_.data();
    view.v = view.k + plane;
    view.head_stride = row;
    view.token_stride = shape_.kv_heads * row;
    view.page_table = page_table_.data();
    view.page_tokens = kPageTokens;
    view.page_stride = 2 * plane;
    view.first_token = layer * ((shape_.tokens + kPageTokens - 1) / kPageTokens * kPageTokens);
  } else {
    const int64_t plane = shape_.kv_heads * shape_.tokens * row;
    view.k = destination_bytes_.data() + layer * 2 * plane;
    view.v = view.k + plane;
    view.head_stride = shape_.tokens * row;
    view.token_stride = row;
  }
  if (destination == Destination::kRotatedV) view.v_form = VForm::kRotated;
  return view;
}

void CodecWork::Encode(uint32_t layer) {
  codec_->encode(shape_, {.raw = SourceOf(layer)}, PartsAt(target_bytes_, *codec_, layer));
}

void CodecWork::Decode(uint32_t layer, Destination destination, Stores stores) {
  KvLayerView view = ViewOf(layer, destination);
  view.stores = stores;
  codec_->decode(shape_, EncodedPlanes(*codec_, shape_), Encoded(layer), view);
}

void CodecWork::DecodeAndVerify(uint32_t layer, Stores stores) {
  Decode(layer, Destination::kContiguous, stores);
  const ConstLayerParts parts = Encoded(layer);
  for (int region = 0; region < kRegions; ++region) KVTIER_CHECK(Crc32c(parts.part[region]) == crcs_[region]);
}

void CodecWork::Cut(uint32_t layer, const Codec& to) {
  constexpr int kKTail = static_cast<int>(Region::kKTail);
  const ConstLayerParts from = Encoded(layer);
  const LayerParts target = PartsAt(target_bytes_, to, layer);
  for (int region = 0; region < kRegions; ++region) {
    if (target.part[region].empty()) continue;
    if (from.part[region].empty()) {
      KVTIER_CHECK(Crc32c(from.part[kKTail]) == crcs_[kKTail]);
      GatherBoost(shape_, from, target.part[region]);
      (void)Crc32c(target.part[region]);
    } else {
      KVTIER_CHECK(StreamAndCrc32c(from.part[region], target.part[region]) == crcs_[region]);
    }
  }
}

std::span<std::byte> CodecWork::Bytes(std::span<std::byte> memory, LayerRun run,
                                      Destination destination) const {
  const uint64_t layer_bytes = fp16_layer_bytes_ * ElementBytes(destination) / 2;
  return memory.subspan(run.first * layer_bytes, run.count * layer_bytes);
}

void CodecWork::MemCopy(LayerRun run, Destination destination) {
  const std::span<std::byte> to = Bytes(destination_bytes_, run, destination);
  std::memcpy(to.data(), Bytes(source_bytes_, run, destination).data(), to.size());
}

void CodecWork::StreamCopy(LayerRun run, Destination destination) {
  const std::span<std::byte> to = Bytes(destination_bytes_, run, destination);
  NonTemporalCopy(to.data(), Bytes(source_bytes_, run, destination).data(), to.size());
}

void CodecWork::ClearTargets() {
  std::ranges::fill(target_bytes_, std::byte{0xCD});
  std::ranges::fill(destination_bytes_, std::byte{0xCD});
}

}  // namespace kvtier::bench
