#include "client/src/view_strides.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <vector>

namespace kvtier::client {
namespace {

constexpr uint32_t kLayers = 3, kHeads = 2, kTokens = 8;

ModelSpec Spec(uint16_t k_dim, uint16_t v_dim) {
  ModelSpec spec;
  spec.layers = kLayers;
  spec.kv_heads = kHeads;
  spec.k_dim = k_dim;
  spec.v_dim = v_dim;
  return spec;
}

std::array<std::byte, 1> memory[kLayers];
void* const bases[kLayers] = {&memory[0], &memory[1], &memory[2]};

/// fp16, [layer][K, V][head][token][channel] of 32 channels.
kvtier_view Nested() {
  kvtier_view view{};
  view.struct_size = sizeof(view);
  view.bases = bases;
  view.n_bases = 1;
  view.token_stride = 32 * 2;
  view.head_stride = kTokens * view.token_stride;
  view.v_offset = kHeads * view.head_stride;
  view.layer_stride = 2 * view.v_offset;
  view.dtype = KVTIER_FP16;
  return view;
}

Status Apart(const kvtier_view& view, LayerRange layers = {.first = 0, .count = kLayers},
             uint64_t tokens = kTokens) {
  static const ModelSpec spec = Spec(32, 32);
  return CheckApart(view, {.spec = spec, .layers = layers, .tokens = tokens});
}

TEST(ViewStrides, ThatPutElementsOverOneAnotherAreRefusedByName) {
  EXPECT_TRUE(Apart(Nested()).ok()) << Apart(Nested()).ToString();
  const std::pair<const char*, std::function<void(kvtier_view&)>> wrong[] = {
      {"token_stride", [](kvtier_view& v) { v.token_stride = 0; }},
      {"token_stride", [](kvtier_view& v) { v.token_stride = 32; }},  // elements for bytes
      {"token_stride", [](kvtier_view& v) { v.dtype = KVTIER_FP32; }},
      {"head_stride", [](kvtier_view& v) { v.head_stride = 0; }},
      {"head_stride", [](kvtier_view& v) { v.head_stride = v.token_stride; }},
      {"head_stride", [](kvtier_view& v) { v.head_stride = -v.token_stride; }},
      {"channel_stride", [](kvtier_view& v) { v.channel_stride = 1; }},
      {"channel_stride", [](kvtier_view& v) { v.channel_stride = v.token_stride; }},
      {"layer_stride", [](kvtier_view& v) { v.layer_stride = 0; }},
      {"layer_stride", [](kvtier_view& v) { v.layer_stride = v.v_offset; }},
      {"v_offset", [](kvtier_view& v) { v.v_offset = 0; }},
      {"v_offset", [](kvtier_view& v) { v.v_offset = v.head_stride; }},
      {"v_offset", [](kvtier_view& v) { v.v_offset = 30; }},
  };
  for (const auto& [name, spoil] : wrong) {
    kvtier_view view = Nested();
    spoil(view);
    const Status status = Apart(view);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.ToString();
  }
}

TEST(ViewStrides, OfWhatIsNotThereMayBeAnything) {
  kvtier_view view = Nested();
  view.layer_stride = 0;
  EXPECT_TRUE(Apart(view, {.first = 2, .count = 1}).ok()) << "one layer";
  view.token_stride = 0;
  EXPECT_TRUE(Apart(view, {.first = 2, .count = 1}, 1).ok()) << "one token";
  const ModelSpec spec = Spec(32, 48);
  view = Nested();
  view.token_stride = view.head_stride = 2 * (32 + 48);
  view.head_stride *= kTokens;
  view.v_offset = 2 * 32;
  view.layer_stride *= 2;
  const ViewPart part = {.spec = spec, .layers = {.first = 0, .count = kLayers}, .tokens = kTokens};
  EXPECT_TRUE(CheckApart(view, part).ok()) << "V behind a shorter K: " << CheckApart(view, part).ToString();
}

TEST(ViewStrides, OfPagesAndBasesAreLookedAtWhereTwoDiffer) {
  kvtier_view view = Nested();
  const int32_t pages[] = {5, 6}, same[] = {5, 5};
  view.page_table = pages;
  view.n_pages = 2;
  view.page_tokens = kTokens / 2;
  EXPECT_EQ(Apart(view).code(), Code::kInvalidArgument) << "page_stride is 0";
  view.page_table = same;
  EXPECT_TRUE(Apart(view).ok()) << "a page that nobody reads";

  view = Nested();
  view.n_bases = kLayers;
  view.layer_stride = 0;
  EXPECT_TRUE(Apart(view).ok());
  void* const twice[] = {&memory[0], &memory[1], &memory[0]};
  view.bases = twice;
  EXPECT_EQ(Apart(view).code(), Code::kInvalidArgument);
  EXPECT_TRUE(Apart(view, {.first = 1, .count = 2}).ok());
}

/// Whether two elements share a byte, looked at one by one.
bool Overlaps(const kvtier_view& view, const ModelSpec& spec) {
  std::vector<int64_t> taken;
  const int64_t channel_stride = view.channel_stride == 0 ? 2 : view.channel_stride;
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (int64_t is_v = 0; is_v < 2; ++is_v)
      for (int64_t head = 0; head < kHeads; ++head)
        for (int64_t token = 0; token < kTokens; ++token)
          for (int64_t channel = 0; channel < (is_v != 0 ? spec.v_dim : spec.k_dim); ++channel) {
            const int64_t at = layer * view.layer_stride + is_v * view.v_offset + head * view.head_stride +
                               token * view.token_stride + channel * channel_stride;
            taken.insert(taken.end(), {at, at + 1});
          }
  std::ranges::sort(taken);
  return std::ranges::adjacent_find(taken) != taken.end();
}

TEST(ViewStrides, ThatKeepElementsApartAreNeverRefused) {
  constexpr uint32_t kSeed = 4711;
  std::mt19937 random(kSeed);
  uint32_t apart = 0, refused = 0;
  for (int round = 0; round < 3'000; ++round) {
    const ModelSpec spec = Spec(16 << random() % 2, 16 << random() % 2);
    // Axes nested in any order, some with gaps, some with the stride of another.
    std::array<int64_t, 5> strides{};
    std::array<uint32_t, 5> order = {0, 1, 2, 3, 4};
    const std::array<int64_t, 5> counts = {kLayers, 2, kHeads, kTokens, std::max(spec.k_dim, spec.v_dim)};
    std::shuffle(order.begin(), order.end(), random);
    int64_t next = 2;
    for (const uint32_t axis : order) {
      strides[axis] = random() % 4 == 0 ? -next : next;
      if (random() % 12 == 0) strides[axis] = strides[order[random() % 5]];
      next *= counts[axis];
      next += random() % 3 == 0 ? random() % 40 : 0;
    }
    kvtier_view view = Nested();
    view.layer_stride = strides[0], view.v_offset = strides[1], view.head_stride = strides[2];
    view.token_stride = strides[3], view.channel_stride = strides[4];
    const Status status =
        CheckApart(view, {.spec = spec, .layers = {.first = 0, .count = kLayers}, .tokens = kTokens});
    const bool overlaps = Overlaps(view, spec);
    apart += overlaps ? 0 : 1;
    refused += status.ok() ? 0 : 1;
    ASSERT_TRUE(status.ok() || overlaps)
        << status.ToString() << ": layer " << strides[0] << " v " << strides[1] << " head " << strides[2]
        << " token " << strides[3] << " channel " << strides[4] << " k_dim " << spec.k_dim << " v_dim "
        << spec.v_dim << " seed " << kSeed << " round " << round;
  }
  EXPECT_GT(apart, 700u);
  EXPECT_GT(refused, 700u);
}

TEST(ViewStrides, ThatReachFurtherThanMemoryAreRefused) {
  const ModelSpec spec = Spec(32, 32);
  const ViewPart part = {.spec = spec, .layers = {.first = 0, .count = kLayers}, .tokens = kTokens};
  EXPECT_TRUE(CheckReach(Nested(), part).ok());
  for (const auto member : {&kvtier_view::layer_stride, &kvtier_view::v_offset, &kvtier_view::head_stride,
                            &kvtier_view::token_stride, &kvtier_view::channel_stride}) {
    for (const int64_t stride : {INT64_MAX, INT64_MIN, int64_t{1} << 60, -(int64_t{1} << 58),
                                 -(int64_t{1} << 54)}) {  // the last: below address 0
      kvtier_view view = Nested();
      view.*member = stride;
      EXPECT_EQ(CheckReach(view, part).code(), Code::kInvalidArgument) << stride;
    }
  }
  kvtier_view view = Nested();
  const int32_t page = INT32_MAX;
  view.page_table = &page;
  view.n_pages = 1;
  view.page_tokens = kTokens;
  view.page_stride = 1 << 20;
  EXPECT_TRUE(CheckReach(view, part).ok());
  view.page_stride = int64_t{1} << 30;
  EXPECT_EQ(CheckReach(view, part).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier::client
