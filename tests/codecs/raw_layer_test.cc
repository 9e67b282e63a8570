#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/fp8.h"
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

/// One row of 16 channels of K, and of V, of one head.
struct OneRow {
  explicit OneRow(DType source, DType destination)
      : shape({.layers = 1, .kv_heads = 1, .k_dim = 16, .v_dim = 16, .tokens = 1, .dtype = source}),
        raw(RawLayerBytes(shape)),
        out(size_t{32} * DTypeBytes(destination)) {
    view = {.k = out.data(),
            .v = out.data() + out.size() / 2,
            .head_stride = static_cast<int64_t>(out.size() / 2),
            .token_stride = static_cast<int64_t>(out.size() / 2),
            .channel_stride = DTypeBytes(destination),
            .dtype = destination};
  }
  BlockShape shape;
  Bytes raw, out;
  KvLayerView view;
};

TEST(RawLayerTest, Fp8IsMultipliedByTheScalesOfKAndV) {
  for (const DType source : {DType::kE4m3, DType::kE5m2}) {
    OneRow row(source, DType::kFp32);
    row.view.scales = {.k = 0.5f, .v = 3};
    for (size_t i = 0; i < 32; ++i) row.raw[i] = static_cast<std::byte>(0x30 + i);
    CopyRawLayer(row.shape, row.raw, row.view);
    for (size_t i = 0; i < 32; ++i) {
      float value = 0;
      memcpy(&value, &row.out[4 * i], sizeof value);
      const auto code = static_cast<uint8_t>(0x30 + i);
      const float number = source == DType::kE4m3 ? Fp32FromE4m3(code) : Fp32FromE5m2(code);
      EXPECT_EQ(value, number * (i < 16 ? 0.5f : 3.0f)) << i;
    }
  }
}

TEST(RawLayerTest, Fp8BeyondFp16EndsAtItsLimitAndNanStaysNan) {
  OneRow row(DType::kE5m2, DType::kFp16);
  row.view.scales = {.k = 4, .v = 1};
  row.raw[0] = std::byte{0x7b};   // 57344 * 4
  row.raw[1] = std::byte{0xfc};   // -infinity
  row.raw[2] = std::byte{0x7e};   // NaN
  row.raw[16] = std::byte{0x7b};  // of V: 57344
  CopyRawLayer(row.shape, row.raw, row.view);
  EXPECT_EQ(Fp32FromFp16(Load16(&row.out[0])), 65504.0f);
  EXPECT_EQ(Fp32FromFp16(Load16(&row.out[2])), -65504.0f);
  EXPECT_TRUE(std::isnan(Fp32FromFp16(Load16(&row.out[4]))));
  EXPECT_EQ(Fp32FromFp16(Load16(&row.out[32])), 57344.0f);
}

TEST(RawLayerTest, IntoFp8ValuesAreDividedByTheScaleAndSaturate) {
  OneRow row(DType::kFp16, DType::kE4m3);
  row.view.scales = {.k = 2, .v = 0.001f};
  const float values[] = {1.0f, -3.0f, 65504.0f, INFINITY, NAN};
  for (size_t i = 0; i < std::size(values); ++i) {
    Store16(&row.raw[2 * i], Fp16FromFp32(values[i]));
    Store16(&row.raw[32 + 2 * i], Fp16FromFp32(values[i]));
  }
  CopyRawLayer(row.shape, row.raw, row.view);
  const uint8_t of_k[] = {E4m3FromFp32(0.5f), E4m3FromFp32(-1.5f), 0x7e, 0x7e, 0x7f};
  const uint8_t of_v[] = {0x7e, 0xfe, 0x7e, 0x7e, 0x7f};
  for (size_t i = 0; i < std::size(values); ++i) {
    EXPECT_EQ(row.out[i], std::byte{of_k[i]}) << i;
    EXPECT_EQ(row.out[16 + i], std::byte{of_v[i]}) << i;
  }
}

TEST(RawLayerTest, Fp8IsFiniteWhenItsProductsFitFp16) {
  OneRow row(DType::kE5m2, DType::kFp16);
  const auto finite = [&](std::byte element, size_t at, Fp8Scales scales) {
    Bytes raw = row.raw;
    raw[at] = element;
    return LayerIsFinite(row.shape, {.raw = raw, .scales = scales});
  };
  EXPECT_TRUE(finite(std::byte{0xfb}, 31, {}));
  for (const uint8_t bad : {0x7c, 0xfc, 0x7d, 0xff}) EXPECT_FALSE(finite(std::byte{bad}, 31, {})) << int{bad};
  EXPECT_FALSE(finite(std::byte{0xfb}, 31, {.k = 1, .v = 1.2f})) << "57344 * 1.2";
  EXPECT_TRUE(finite(std::byte{0xfb}, 31, {.k = 100, .v = 1})) << "that is V";
  EXPECT_FALSE(finite(std::byte{0xfb}, 0, {.k = 100, .v = 1}));
  row.shape.dtype = DType::kE4m3;
  EXPECT_TRUE(finite(std::byte{0x7e}, 3, {}));
  EXPECT_FALSE(finite(std::byte{0x7f}, 3, {}));
  EXPECT_FALSE(finite(std::byte{0xff}, 3, {}));
}

}  // namespace
}  // namespace kvtier
