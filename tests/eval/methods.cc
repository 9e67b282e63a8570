#include "tests/eval/methods.h"

#include <algorithm>

#include "kernels/numerics.h"
#include "tests/quality/cache.h"

namespace kvtier::eval {
namespace {

constexpr uint16_t kUsualTokens = 128, kShortTokens = 64;

/// Boosted channels of a head, as the default of model profiles and smaller.
uint8_t Boost(uint32_t head_dim, uint32_t part) {
  return part == 0 ? 0 : static_cast<uint8_t>(4 * (head_dim / (4 * part)));
}

struct Form {
  const Codec* codec;
  uint16_t tokens = kUsualTokens;
  uint32_t boost_part = 2;  ///< one in so many channels; 0: none
};

Result<StoredBlock> EncodeBlock(const Form& form, uint32_t first_token, ContextKv& context) {
  const uint32_t tokens = std::min<uint32_t>(form.tokens, context.tokens() - first_token);
  const auto dim = static_cast<uint16_t>(context.heads().head_dim);
  const BlockShape shape = {.layers = context.layers(),
                            .kv_heads = static_cast<uint16_t>(context.heads().kv_heads),
                            .k_dim = dim,
                            .v_dim = dim,
                            .tokens = static_cast<uint16_t>(tokens),
                            .dtype = DType::kFp16,
                            .nraw = static_cast<uint8_t>(first_token == 0 ? 1 : 0),
                            .nb = Boost(dim, form.boost_part)};
  BlockIdentity identity = MakeIdentity(first_token / form.tokens, shape);
  identity.first_position = first_token;
  const uint64_t layer_bytes = RawLayerBytes(shape);
  std::vector<std::byte> raw(RawBlockBytes(shape));
  for (uint32_t layer = 0; layer < shape.layers; ++layer)
    GatherRawLayer(shape, context.View(layer, first_token),
                   std::span(raw).subspan(layer * layer_bytes, layer_bytes));
  StoredBlock block;
  KVTIER_ASSIGN(block.owned, EncodeOwned(*form.codec, identity, raw));
  KVTIER_ASSIGN(block.image, ParseImage(block.owned.bytes));
  KVTIER_TRY(VerifyImage(block.image));
  return block;
}

void DecodeBlock(const ImageView& image, ContextKv& context) {
  const auto first_token = static_cast<uint32_t>(image.identity.first_position);
  for (uint16_t layer = 0; layer < image.identity.shape.layers; ++layer) {
    const uint8_t planes = image.table[layer].planes;
    if (planes & kPlaneRaw) continue;  // as it was
    image.codec->decode(image.identity.shape, planes, image.Parts(layer), context.View(layer, first_token));
  }
}

Method OfBlocks(const std::string& name, const EncodeBlocks& encode) {
  return {name,
          [encode](ContextKv& context) -> Result<double> {
            KVTIER_ASSIGN(const std::vector<StoredBlock> blocks, encode(context));
            for (const StoredBlock& block : blocks) DecodeBlock(block.image, context);
            return BitsOf(blocks);
          },
          encode};
}

Method OfForm(const std::string& name, const Form& form) {
  return OfBlocks(name, [form](ContextKv& context) -> Result<std::vector<StoredBlock>> {
    std::vector<StoredBlock> blocks;
    for (uint32_t token = 0; token < context.tokens(); token += form.tokens) {
      KVTIER_ASSIGN(StoredBlock block, EncodeBlock(form, token, context));
      blocks.push_back(std::move(block));
    }
    return blocks;
  });
}

Method Ladder() {
  return OfBlocks("ladder", [](ContextKv& context) -> Result<std::vector<StoredBlock>> {
    constexpr CodecId kRungs[] = {CodecId::kRaw16, CodecId::kKv4p, CodecId::kKv42, CodecId::kKv2p};
    const uint32_t count = (context.tokens() + kUsualTokens - 1) / kUsualTokens;
    std::vector<StoredBlock> blocks;
    for (uint32_t i = 0; i < count; ++i) {
      const Form form = {FindCodec(kRungs[i * std::size(kRungs) / count])};
      KVTIER_ASSIGN(StoredBlock block, EncodeBlock(form, i * kUsualTokens, context));
      blocks.push_back(std::move(block));
    }
    return blocks;
  });
}

/// Calls `visit` with every number's place in the state and in [head][token][channel].
template <typename Visit>
void ForEach(const ContextKv& context, const KvLayerView& view, const Visit& visit) {
  size_t at = 0;
  for (uint32_t head = 0; head < context.heads().kv_heads; ++head)
    for (uint32_t token = 0; token < context.tokens(); ++token)
      for (uint32_t c = 0; c < context.heads().head_dim; ++c, ++at)
        visit(view.Row(head, token) + c * view.channel_stride, at);
}

/// Another project's format, on a whole layer at a time.
Method OfReference(const quality::LayerReference& reference) {
  return {reference.name, [quantize = reference.quantize](ContextKv& context) -> Result<double> {
            double bits = 0;
            for (uint32_t layer = 0; layer < context.layers(); ++layer) {
              const KvLayerView view = context.View(layer, 0);
              quality::LayerKv kv = {.heads = context.heads().kv_heads,
                                     .tokens = context.tokens(),
                                     .dim = context.heads().head_dim,
                                     .k = {},
                                     .v = {}};
              kv.k.resize(size_t{kv.heads} * kv.tokens * kv.dim);
              kv.v.resize(kv.k.size());
              ForEach(context, view, [&](int64_t from, size_t at) {
                kv.k[at] = Fp32FromFp16(Load16(view.k + from));
                kv.v[at] = Fp32FromFp16(Load16(view.v + from));
              });
              bits += quantize(kv);
              ForEach(context, view, [&](int64_t to, size_t at) {
                Store16(view.k + to, Fp16FromFp32(kv.k[at]));
                Store16(view.v + to, Fp16FromFp32(kv.v[at]));
              });
            }
            return bits;
          }};
}

}  // namespace

double BitsOf(std::span<const StoredBlock> blocks) {
  double bits = 0;
  for (const StoredBlock& block : blocks) bits += 8.0 * static_cast<double>(block.owned.bytes.size());
  return bits;
}

std::vector<Method> AllMethods() {
  const auto codec = [](CodecId id) { return FindCodec(id); };
  std::vector<Method> methods = {
      OfForm(kExactMethod, {codec(CodecId::kRaw16)}),
      OfForm("kv8", {codec(CodecId::kKv8)}),
      OfForm("kv4p", {codec(CodecId::kKv4p)}),
      OfForm("kv42", {codec(CodecId::kKv42)}),
      OfForm("kv2p", {codec(CodecId::kKv2p)}),
      OfForm("kv2p, boost 1/4", {codec(CodecId::kKv2p), kUsualTokens, 4}),
      OfForm("kv2p, no boost", {codec(CodecId::kKv2p), kUsualTokens, 0}),
      OfForm("kv2p, T=64", {codec(CodecId::kKv2p), kShortTokens}),
      OfForm("kv2p, T=64, boost 1/8", {codec(CodecId::kKv2p), kShortTokens, 8}),
      Ladder(),
  };
  for (const quality::LayerReference& reference : quality::LayerReferences()) {
    if (reference.name.starts_with("KIVI") || reference.name.ends_with("rotated"))
      methods.push_back(OfReference(reference));
  }
  return methods;
}

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const Method& method : AllMethods()) names.push_back(method.name);
  names.insert(names.end(), {kQ8Cache, kQ4Cache});
  return names;
}

std::vector<std::string> AttendedNames() {
  std::vector<std::string> names;
  for (const Method& method : AllMethods())
    if (method.encode) names.push_back(method.name + kAttended);
  return names;
}

std::vector<Rule> Rules() {
  // The first two are close, and over a few tokens chance decides.
  return {{"kv4p", "q4_0 rotated", 256}, {"kv4p", kQ4Cache, 1}, {"kv2p", "KIVI-2 g32", 1}};
}

}  // namespace kvtier::eval
