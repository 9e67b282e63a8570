#include "tests/crash/payload.h"

#include "daemon/policy/model_spec.h"
#include "tests/support/blocks.h"

namespace kvtier::crash {
namespace {

constexpr uint32_t kOwnerFactor = 2654435761u, kGenerationFactor = 40503u, kSeedFactor = 97u;
constexpr size_t kOwnerTokens = size_t{kBlocksOfOwner} * e2e::kBlockTokens;

BlockShape ShapeOfBlock(uint32_t block) {
  ModelSpec spec;
  spec.layers = e2e::kLayers;
  spec.kv_heads = e2e::kHeads;
  spec.k_dim = spec.v_dim = e2e::kDim;
  spec.tokens_per_block = e2e::kBlockTokens;
  spec.boost_channels = DefaultBoost(e2e::kDim);
  return ShapeOf(spec, uint64_t{block} * e2e::kBlockTokens, e2e::kBlockTokens);
}

/// Layer `layer` of block `block` inside the owner's K and V.
KvLayerView LayerView(e2e::Kv& kv, uint32_t block, uint16_t layer) {
  const kvtier_view view = kv.View(size_t{block} * e2e::kBlockTokens);
  KvLayerView out;
  out.k = static_cast<std::byte*>(view.bases[0]) + layer * view.layer_stride;
  out.v = out.k + view.v_offset;
  out.head_stride = view.head_stride;
  out.token_stride = view.token_stride;
  out.channel_stride = sizeof(uint16_t);
  return out;
}

OwnedImage ImageOf(e2e::Kv& raw, uint32_t block, CodecId codec) {
  BlockIdentity identity;
  identity.first_position = uint64_t{block} * e2e::kBlockTokens;
  identity.shape = ShapeOfBlock(block);
  std::vector<std::byte> bytes(RawBlockBytes(identity.shape));
  const uint64_t layer_bytes = RawLayerBytes(identity.shape);
  for (uint16_t layer = 0; layer < identity.shape.layers; ++layer) {
    GatherRawLayer(identity.shape, LayerView(raw, block, layer),
                   std::span(bytes).subspan(layer * layer_bytes, layer_bytes));
  }
  OwnedImage image = EncodeOwned(*FindCodec(CodecId::kKv4p), identity, bytes).value();
  if (codec == CodecId::kKv4p) return image;
  return RequantizeOwned(image.bytes, *FindCodec(codec), identity).value();
}

CodecId CodecOf(kvtier_precision precision) {
  switch (precision) {
    case KVTIER_INT2:
      return CodecId::kKv2p;
    case KVTIER_K4V2:
      return CodecId::kKv42;
    case KVTIER_INT4:
      return CodecId::kKv4p;
    default:
      KVTIER_CHECK(false);  // no tier of the campaign keeps it
      return CodecId::kNone;
  }
}

}  // namespace

uint32_t Payloads::SeedOf(Version version) const {
  return seed_ * kSeedFactor + version.owner * kOwnerFactor + version.generation * kGenerationFactor;
}

std::vector<int32_t> Payloads::TokensOf(uint32_t owner) const {
  return e2e::Tokens(SeedOf({.owner = owner, .generation = 0}), kOwnerTokens);
}

e2e::Kv& Payloads::Raw(Version version) {
  const auto name = std::make_pair(version, KVTIER_BITS16);
  const auto found = made_.find(name);
  if (found != made_.end()) return found->second;
  return made_.emplace(name, e2e::Kv::Random(SeedOf(version), kOwnerTokens)).first->second;
}

const e2e::Kv& Payloads::Expected(Version version, kvtier_precision precision) {
  e2e::Kv& raw = Raw(version);
  if (precision == KVTIER_BITS16) return raw;
  const auto name = std::make_pair(version, precision);
  const auto found = made_.find(name);
  if (found != made_.end()) return found->second;
  e2e::Kv& decoded = made_.emplace(name, e2e::Kv(kOwnerTokens)).first->second;
  for (uint32_t block = 0; block < kBlocksOfOwner; ++block) {
    const OwnedImage image = ImageOf(raw, block, CodecOf(precision));
    const ImageView view = ParseImage(image.bytes).value();
    for (uint16_t layer = 0; layer < e2e::kLayers; ++layer) {
      view.codec->decode(view.identity.shape, view.table[layer].planes, view.Parts(layer),
                         LayerView(decoded, block, layer));
    }
  }
  return decoded;
}

void Payloads::Forget(uint32_t owner) {
  std::erase_if(made_, [owner](const auto& one) { return one.first.first.owner == owner; });
}

}  // namespace kvtier::crash
