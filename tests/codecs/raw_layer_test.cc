#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/numerics.h"
#include "tests/codecs/encoded_layer.h"
#include "tests/codecs/engine_layouts.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

BlockShape Shape(uint16_t k_dim, uint16_t v_dim, uint16_t tokens, DType dtype = DType::kFp16) {
  return {.layers = 1, .kv_heads = 3, .k_dim = k_dim, .v_dim = v_dim, .tokens = tokens, .dtype = dtype};
}

Bytes RandomBits(uint64_t bytes) {
  std::mt19937 random(99);
  Bytes bits(bytes);
  for (std::byte& byte : bits) byte = static_cast<std::byte>(random());
  return bits;
}

TEST(RawLayerTest, GatheringWhatWasCopiedGivesAnyBitsBack) {
  for (const BlockShape& shape :
       {Shape(64, 64, 64), Shape(16, 128, 7), Shape(256, 80, 1), Shape(64, 64, 128, DType::kBf16),
        Shape(64, 80, 33, DType::kE4m3), Shape(128, 128, 16, DType::kE5m2)}) {
    const Bytes raw = RandomBits(RawLayerBytes(shape));
    for (const EngineLayout& layout : EngineLayouts(shape, DTypeBytes(shape.dtype))) {
      SCOPED_TRACE(layout.name);
      for (const GuardedEnd end : {GuardedEnd::kFront, GuardedEnd::kBack}) {
        const GuardedMemory engine(layout.bytes, end), source(raw, end), back(raw.size(), end);
        const KvLayerView view = layout.View(engine.span().data(), shape.dtype);
        CopyRawLayer(shape, source.span(), view);
        GatherRawLayer(shape, view, back.span());
        EXPECT_TRUE(std::ranges::equal(back.span(), raw));
      }
    }
  }
}

TEST(RawLayerTest, Bf16IntoFp16RoundsAndEndsAtTheLargestFp16) {
  const BlockShape shape = Shape(16, 16, 1, DType::kBf16);
  Bytes raw(RawLayerBytes(shape)), out(raw.size());
  const float values[] = {1.0f, -1e30f, 1e30f, 3e-8f, 65280.0f, INFINITY, -INFINITY, NAN};
  for (size_t i = 0; i < std::size(values); ++i) Store16(&raw[2 * i], Bf16FromFp32(values[i]));
  KvLayerView view{.k = out.data(),
                   .v = out.data() + out.size() / 2,
                   .head_stride = 32,
                   .token_stride = 96,
                   .channel_stride = 2};
  CopyRawLayer(shape, raw, view);
  const float expected[] = {1.0f,     -65504.0f, 65504.0f, std::ldexp(1.0f, -25 + 1),
                            65280.0f, 65504.0f,  -65504.0f};
  for (size_t i = 0; i < std::size(expected); ++i)
    EXPECT_EQ(Fp32FromFp16(Load16(&out[2 * i])), expected[i]) << i;
  EXPECT_TRUE(std::isnan(Fp32FromFp16(Load16(&out[14]))));
}

TEST(RawLayerTest, Fp16IntoBf16RoundsToNearestEven) {
  const BlockShape shape = Shape(16, 16, 1);
  Bytes raw(RawLayerBytes(shape)), out(raw.size());
  for (size_t i = 0; i < 16; ++i) Store16(&raw[2 * i], static_cast<uint16_t>(0x3c00 + i));  // 1 + i 2^-10
  KvLayerView view{.k = out.data(),
                   .v = out.data() + out.size() / 2,
                   .head_stride = 32,
                   .token_stride = 96,
                   .channel_stride = 2};
  view.dtype = DType::kBf16;
  CopyRawLayer(shape, raw, view);
  for (size_t i = 0; i < 16; ++i) {
    const double bf16_steps = static_cast<double>(i) / 8;  // BF16 has seven bits of mantissa
    EXPECT_EQ(Load16(&out[2 * i]), 0x3f80 + static_cast<int>(std::nearbyint(bf16_steps))) << i;
  }
}

}  // namespace
}  // namespace kvtier
