// What the plane family's decoders give besides plain fp16: FP32 and rotated V.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/numerics.h"
#include "kernels/tile.h"
#include "tests/codecs/encoded_layer.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 2024;

/// V of two groups of 64 and one of 32.
BlockShape Shape() {
  return {.layers = 1,
          .kv_heads = 2,
          .k_dim = 80,
          .v_dim = 160,
          .tokens = 22,
          .dtype = DType::kFp16,
          .nraw = 2,
          .nb = 40};
}

Bytes RandomRaw(const BlockShape& shape) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  Bytes raw(RawLayerBytes(shape));
  for (size_t at = 0; at < raw.size(); at += 2) Store16(&raw[at], Fp16FromFp32(normal(random)));
  return raw;
}

/// V [heads][tokens][v_dim] as the decoder gives it.
template <typename Element>
std::vector<Element> DecodedV(const EncodedLayer& layer, DType dtype, VForm form) {
  const BlockShape& s = layer.shape;
  const auto row = static_cast<int64_t>(sizeof(Element)) * s.v_dim;
  std::vector<Element> k(size_t{s.kv_heads} * s.tokens * s.v_dim), v(k.size());
  KvLayerView view;
  view.k = reinterpret_cast<std::byte*>(k.data());
  view.v = reinterpret_cast<std::byte*>(v.data());
  view.token_stride = row;
  view.head_stride = row * s.tokens;
  view.channel_stride = sizeof(Element);
  view.dtype = dtype;
  view.v_form = form;
  FindCodec(CodecId::kKv4p)->decode(s, layer.planes, layer.View(), view);
  return v;
}

template <typename Check>
void ForEachV(const BlockShape& s, const Check& check) {
  size_t at = 0;
  for (uint32_t head = 0; head < s.kv_heads; ++head)
    for (uint32_t token = 0; token < s.tokens; ++token)
      for (uint32_t c = 0; c < s.v_dim; ++c) check(at++, head, token, c);
}

EncodedLayer Encode() {
  return EncodeLayer(*FindCodec(CodecId::kKv4p), Shape(), RandomRaw(Shape()));
}

TEST(OutputFormsTest, Fp32IsWhatTheNarrowOutputsRound) {
  const EncodedLayer layer = Encode();
  for (const VForm form : {VForm::kPlain, VForm::kRotated}) {
    const auto wide = DecodedV<float>(layer, DType::kFp32, form);
    const auto half = DecodedV<uint16_t>(layer, DType::kFp16, form);
    const auto brain = DecodedV<uint16_t>(layer, DType::kBf16, form);
    for (size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(Fp16FromFp32(wide[i]), half[i]) << "element " << i;
      ASSERT_EQ(Bf16FromFp32(wide[i]), brain[i]) << "element " << i;
    }
  }
}

TEST(OutputFormsTest, Fp32StaysInsideTheFp16Range) {
  EncodedLayer layer = Encode();
  const SectionBytes bytes = SectionBytesOf(layer.shape);
  std::fill_n(layer.part[0].begin() + static_cast<ptrdiff_t>(AlignSection(bytes.k_ranges)), bytes.v_scales,
              std::byte{247});
  float largest = 0;
  for (const float value : DecodedV<float>(layer, DType::kFp32, VForm::kPlain))
    largest = std::max(largest, std::fabs(value));
  EXPECT_EQ(largest, kFp16Max);
}

TEST(OutputFormsTest, RawRowsAreExactInFp32) {
  const Bytes raw = RandomRaw(Shape());
  const auto wide = DecodedV<float>(Encode(), DType::kFp32, VForm::kPlain);
  const size_t v_at = size_t{2} * Shape().kv_heads * Shape().tokens * Shape().k_dim;
  ForEachV(Shape(), [&](size_t i, uint32_t, uint32_t token, uint32_t) {
    if (token >= Shape().nraw) return;
    EXPECT_EQ(wide[i], Fp32FromFp16(Load16(&raw[v_at + 2 * i])));
  });
}

TEST(OutputFormsTest, RotatedVIsTheStoredGrid) {
  const BlockShape s = Shape();
  const EncodedLayer layer = Encode();
  const SectionBytes bytes = SectionBytesOf(s);
  const std::byte* v_scale = layer.part[0].data() + AlignSection(bytes.k_ranges);
  const std::byte* v_high =
      v_scale + AlignSection(bytes.v_scales) + AlignSection(bytes.raw_rows) + AlignSection(bytes.k_high);
  const std::byte* v_low = layer.part[static_cast<int>(Region::kVTail)].data();
  const auto half = DecodedV<uint16_t>(layer, DType::kFp16, VForm::kRotated);
  ForEachV(s, [&](size_t i, uint32_t head, uint32_t token, uint32_t c) {
    if (token < s.nraw || c >= 128) return;
    const uint32_t row = head * 24 + token;  // 22 tokens padded to 24
    const uint32_t byte = row * (s.v_dim / 4) + c / 64 * 16 + c % 16, shift = c % 64 / 16 * 2;
    const int code = (std::to_integer<int>(v_high[byte]) >> shift & 3) * 4 +
                     (std::to_integer<int>(v_low[byte]) >> shift & 3);
    const auto scale_bits = static_cast<uint16_t>(std::to_integer<int>(v_scale[row * 3 + c / 64]) << 7);
    const float expected = static_cast<float>(2 * code - 15) * (Fp32FromFp16(scale_bits) / 2);
    ASSERT_EQ(half[i], Fp16Out(expected)) << "token " << token << " channel " << c;
  });
}

TEST(OutputFormsTest, RotatingBackGivesPlainV) {
  const BlockShape s = Shape();
  const EncodedLayer layer = Encode();
  const auto plain = DecodedV<float>(layer, DType::kFp32, VForm::kPlain);
  auto rotated = DecodedV<float>(layer, DType::kFp32, VForm::kRotated);
  for (size_t row = 0; row < rotated.size(); row += s.v_dim) {
    for (size_t group = 0; group < 128; group += 64) {
      Hadamard64(&rotated[row + group]);
      for (size_t i = 0; i < 64; ++i) rotated[row + group + i] /= 8;
    }
  }
  // Raw rows too; the last 32 channels were never rotated.
  for (size_t i = 0; i < plain.size(); ++i) ASSERT_NEAR(rotated[i], plain[i], 1e-5) << "element " << i;
}

TEST(OutputFormsTest, RotatedVOfAZeroScaleIsPlusZero) {
  Bytes raw = RandomRaw(Shape());
  const size_t v_at = size_t{2} * Shape().kv_heads * Shape().tokens * Shape().k_dim;
  std::fill(raw.begin() + static_cast<ptrdiff_t>(v_at), raw.end(), std::byte{0});
  const EncodedLayer layer = EncodeLayer(*FindCodec(CodecId::kKv4p), Shape(), raw);
  for (const uint16_t half : DecodedV<uint16_t>(layer, DType::kFp16, VForm::kRotated)) ASSERT_EQ(half, 0);
}

}  // namespace
}  // namespace kvtier
