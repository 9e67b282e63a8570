#include "tests/quality/kvtier_methods.h"

#include <algorithm>

#include "kernels/fp8.h"
#include "kernels/numerics.h"

namespace kvtier::quality {
namespace {

BlockShape ShapeOf(const Form& form, const Fixture& fixture, uint32_t first_token) {
  BlockShape shape = fixture.Shape(form.tokens, first_token == 0 ? 1 : 0, form.nb);
  if (form.codec->id == CodecId::kRaw8) shape.dtype = DType::kE4m3;
  return shape;
}

/// What an engine with an FP8 cache would hand over, scale 1.
std::vector<std::byte> E4m3From(const std::vector<std::byte>& halves) {
  std::vector<std::byte> codes(halves.size() / 2);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::byte>(E4m3FromFp32(Fp32FromFp16(Load16(halves.data() + 2 * i))));
  return codes;
}

Result<Restored> Restore(const Form& form, const Fixture& fixture) {
  Restored restored;
  for (uint32_t layer = 0; layer < fixture.layers(); ++layer)
    restored.layers.push_back(OriginalLayer(fixture, layer));
  for (uint32_t token = 0; token < fixture.tokens(); token += form.tokens) {
    KVTIER_ASSIGN(const OwnedImage owned, EncodeFixtureBlock(form, fixture, token));
    KVTIER_ASSIGN(const ImageView image, ParseImage(owned.bytes));
    KVTIER_TRY(VerifyImage(image));
    DecodeInto(image, token, restored.layers);
    restored.bytes += owned.bytes.size();
  }
  return restored;
}

std::string NameOf(const Form& form) {
  std::string name(form.codec->name);
  if (!IsPlaneFamily(form.codec->id)) return name;
  name += " T" + std::to_string(form.tokens);
  if (form.by != nullptr) name += " by " + std::string(form.by->name);
  return form.codec->id == CodecId::kKv2p ? name + " nb" + std::to_string(form.nb) : name;
}

}  // namespace

Result<OwnedImage> EncodeFixtureBlock(const Form& form, const Fixture& fixture, uint32_t first_token) {
  std::vector<std::byte> raw = fixture.RawBlock(first_token, form.tokens);
  const BlockShape shape = ShapeOf(form, fixture, first_token);
  if (shape.dtype == DType::kE4m3) raw = E4m3From(raw);
  const BlockIdentity identity = MakeIdentity(first_token, shape);
  if (form.by == nullptr) return EncodeOwned(*form.codec, identity, raw);
  KVTIER_ASSIGN(const OwnedImage before, EncodeOwned(*form.by, identity, raw));
  return RequantizeOwned(before.bytes, *form.codec, identity);
}

void DecodeInto(const ImageView& image, uint32_t first_token, std::vector<LayerKv>& layers) {
  const BlockShape& shape = image.identity.shape;
  const size_t head_halves = size_t{shape.tokens} * shape.k_dim, plane_halves = shape.kv_heads * head_halves;
  std::vector<uint16_t> halves(2 * plane_halves);
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    KvLayerView view = {.head_stride = static_cast<int64_t>(2 * head_halves),
                        .token_stride = 2 * shape.k_dim,
                        .channel_stride = 2,
                        .dtype = DType::kFp16};
    view.k = reinterpret_cast<std::byte*>(halves.data());
    view.v = reinterpret_cast<std::byte*>(halves.data() + plane_halves);
    image.codec->decode(shape, image.table[layer].planes, image.Parts(layer), view);
    LayerKv& out = layers[layer];
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      const size_t to = (size_t{head} * out.tokens + first_token) * out.dim, from = head * head_halves;
      std::transform(halves.data() + from, halves.data() + from + head_halves, out.k.data() + to,
                     Fp32FromFp16);
      std::transform(halves.data() + plane_halves + from, halves.data() + plane_halves + from + head_halves,
                     out.v.data() + to, Fp32FromFp16);
    }
  }
}

LayerKv OriginalLayer(const Fixture& fixture, uint32_t layer) {
  LayerKv kv = {
      .heads = fixture.kv_heads(), .tokens = fixture.tokens(), .dim = fixture.dim(), .k = {}, .v = {}};
  const size_t n = size_t{kv.heads} * kv.tokens * kv.dim;
  kv.k.resize(n);
  kv.v.resize(n);
  std::transform(fixture.K(layer), fixture.K(layer) + n, kv.k.begin(), Fp32FromFp16);
  std::transform(fixture.V(layer), fixture.V(layer) + n, kv.v.begin(), Fp32FromFp16);
  return kv;
}

std::vector<Method> KvtierMethods() {
  constexpr uint16_t kUsualTokens = 128, kShortTokens = 64;
  constexpr uint8_t kHalf = 32, kQuarter = 16, kEighth = 8;  // of the fixtures' 64 channels
  std::vector<Form> forms;
  for (const Codec* codec : AllCodecs()) {
    forms.push_back({codec, kUsualTokens, kHalf});
    if (codec->id == CodecId::kKv2p)
      for (const uint8_t nb : {kQuarter, kEighth, uint8_t{0}}) forms.push_back({codec, kUsualTokens, nb});
    if (IsPlaneFamily(codec->id)) forms.push_back({codec, kShortTokens, kHalf});
    if (codec->id == CodecId::kKv4p) forms.push_back({codec, kUsualTokens, kHalf, FindCodec(CodecId::kKv8)});
  }
  std::vector<Method> methods;
  for (const Form& form : forms)
    methods.push_back({NameOf(form), [form](const Fixture& fixture) { return Restore(form, fixture); }});
  return methods;
}

}  // namespace kvtier::quality
