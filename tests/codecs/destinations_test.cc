// What every codec must write, whatever the destination: its layout, type and form of V.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/fp8.h"
#include "kernels/numerics.h"
#include "kernels/tile.h"
#include "tests/codecs/codec_shapes.h"
#include "tests/codecs/encoded_layer.h"
#include "tests/codecs/engine_layouts.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

class DestinationTest : public testing::TestWithParam<const Codec*> {
 protected:
  const Codec& codec() const { return *GetParam(); }
};

/// Whether `element` is `value` in the type of a destination.
bool IsRounded(float value, float scale, DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::kFp16:
      return Load16(element) == Fp16FromFp32(value);
    case DType::kBf16:
      return Load16(element) == Bf16FromFp32(value);
    case DType::kE4m3:
      return *element == static_cast<std::byte>(E4m3FromFp32(value / scale));
    default:
      return *element == static_cast<std::byte>(E5m2FromFp32(value / scale));
  }
}

TEST_P(DestinationTest, EveryDestinationTypeHasTheValuesOfFp32Rounded) {
  for (const BlockShape& shape : FewShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const EncodedLayer layer = EncodeLayer(codec(), shape, RandomRaw(shape), kScales);
    const size_t k_elements = size_t{shape.kv_heads} * shape.tokens * shape.k_dim;
    for (const VForm form : {VForm::kPlain, VForm::kRotated}) {
      const Bytes wide =
          DecodeLayer(codec(), layer, {.dtype = DType::kFp32, .scales = kScales, .v_form = form});
      for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}) {
        const Bytes narrow = DecodeLayer(codec(), layer, {.dtype = dtype, .scales = kScales, .v_form = form});
        size_t wrong = 0;
        for (size_t i = 0; 4 * i < wide.size(); ++i) {
          float value = 0;
          memcpy(&value, &wide[4 * i], sizeof value);
          const float scale = i < k_elements ? kScales.k : kScales.v;
          wrong += !IsRounded(value, scale, dtype, &narrow[i * DTypeBytes(dtype)]);
        }
        EXPECT_EQ(wrong, 0u) << kDTypeNames[static_cast<int>(dtype)];
      }
    }
  }
}

TEST_P(DestinationTest, RotatedVTurnedBackIsPlainV) {
  for (const BlockShape& shape : FewShapesOf(codec())) {
    SCOPED_TRACE(Describe(shape));
    const EncodedLayer layer = EncodeLayer(codec(), shape, RandomRaw(shape), kScales);
    const auto decode = [&](VForm form) {
      const Bytes bytes =
          DecodeLayer(codec(), layer, {.dtype = DType::kFp32, .scales = kScales, .v_form = form});
      std::vector<float> values(bytes.size() / sizeof(float));
      memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    };
    const std::vector<float> plain = decode(VForm::kPlain);
    std::vector<float> back = decode(VForm::kRotated);
    const size_t k_elements = size_t{shape.kv_heads} * shape.tokens * shape.k_dim;
    for (size_t row = k_elements; row < back.size(); row += shape.v_dim)
      RotateGroups(&back[row], shape.v_dim);
    double square = 0, off = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      square += double{plain[i]} * plain[i];
      off += (double{plain[i]} - back[i]) * (double{plain[i]} - back[i]);
    }
    EXPECT_LE(std::sqrt(off / square), 1e-6);
  }
}

TEST_P(DestinationTest, DecodesIntoEveryLayoutAndTouchesNothingElse) {
  size_t turn = 0;
  for (const BlockShape& shape : FewShapesOf(codec())) {
    const EncodedLayer layer = EncodeLayer(codec(), shape, RandomRaw(shape), kScales);
    for (const Destination& to : Destinations()) {
      const Bytes expected = DecodeLayer(codec(), layer, to);
      const size_t element_bytes = DTypeBytes(to.dtype);
      std::vector<EngineLayout> layouts = EngineLayouts(shape, DTypeBytes(to.dtype));
      // Every layout with plain fp16; with other destinations they take turns.
      if (to.dtype != DType::kFp16 || to.v_form != VForm::kPlain)
        layouts = {layouts[turn % layouts.size()], layouts[(turn + 3) % layouts.size()]};
      ++turn;
      for (const EngineLayout& layout : layouts) {
        SCOPED_TRACE(Describe(shape) + " into " + layout.name + " " +
                     kDTypeNames[static_cast<int>(to.dtype)]);
        const GuardedMemory memory(layout.bytes, GuardedEnd::kBack);
        const std::span<std::byte> bytes = memory.span();
        std::ranges::fill(bytes, std::byte{0xA5});
        KvLayerView view = layout.View(bytes.data(), to.dtype);
        view.scales = to.scales;
        view.v_form = to.v_form;
        codec().decode(shape, layer.planes, layer.View(), view);

        size_t at = 0;
        bool is_equal = true;
        const auto compare = [&](std::byte* base, uint32_t dim) {
          for (uint32_t head = 0; head < shape.kv_heads; ++head) {
            for (uint32_t token = 0; token < shape.tokens; ++token) {
              for (uint32_t c = 0; c < dim; ++c, at += element_bytes) {
                std::byte* element = base + view.Row(head, token) + c * view.channel_stride;
                is_equal &= memcmp(element, &expected[at], element_bytes) == 0;
                memset(element, 0xA5, element_bytes);  // for the check of the rest
              }
            }
          }
        };
        compare(view.k, shape.k_dim);
        compare(view.v, shape.v_dim);
        EXPECT_TRUE(is_equal);
        EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0xA5}; }));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, DestinationTest, testing::ValuesIn(AllCodecs().begin(), AllCodecs().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace kvtier
