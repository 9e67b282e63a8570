#include "client/src/view.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace kvtier::client {
namespace {

std::array<std::byte, 400'000> memory;

kvtier_view Simple(void* const* bases) {
  kvtier_view view{};
  view.struct_size = sizeof(view);
  view.bases = bases;
  view.n_bases = 1;
  view.layer_stride = 100'000;
  view.v_offset = 50'000;
  view.head_stride = 128;
  view.token_stride = 256;
  view.dtype = KVTIER_FP16;
  return view;
}

ModelSpec Spec(uint16_t layers) {
  ModelSpec spec;
  spec.layers = layers;
  spec.kv_heads = 2;
  spec.k_dim = 64;
  spec.v_dim = 64;
  return spec;
}

Result<View> Destination(const kvtier_view& view, const ModelSpec& spec, uint64_t tokens) {
  return View::CheckDestination(&view, spec, {.first = 0, .count = spec.layers}, tokens);
}

TEST(View, FindsLayersFromOneBaseOrFromOneEach) {
  void* bases[] = {memory.data(), memory.data() + 2000, memory.data() + 3000};
  kvtier_view view = Simple(bases);
  const ModelSpec spec = Spec(3);
  KvLayerView layer = Destination(view, spec, 10)->Layer(2, 4);
  EXPECT_EQ(layer.k, memory.data() + 200'000);
  EXPECT_EQ(layer.v, memory.data() + 250'000);
  EXPECT_EQ(layer.Row(1, 1), 5 * 256 + 128);
  EXPECT_EQ(layer.channel_stride, 2) << "0 means packed";

  view.n_bases = 3;
  view.channel_stride = 4;
  view.head_stride = 4 * 64;
  view.token_stride = 8 * 64;
  layer = Destination(view, spec, 10)->Layer(2, 0);
  EXPECT_EQ(layer.k, memory.data() + 3000);
  EXPECT_EQ(layer.channel_stride, 4);
}

TEST(View, GoesThroughThePageTable) {
  void* bases[] = {memory.data()};
  const int32_t pages[] = {7, 2, 5};
  kvtier_view view = Simple(bases);
  view.page_table = pages;
  view.n_pages = 3;
  view.page_tokens = 4;
  view.page_stride = 10'000;
  const ModelSpec spec = Spec(1);
  const KvLayerView layer = Destination(view, spec, 12)->Layer(0, 4);
  EXPECT_EQ(layer.Row(0, 0), 20'000);
  EXPECT_EQ(layer.Row(1, 5), 50'000 + 256 + 128);
}

TEST(View, RefusesWhatItCannotFollow) {
  void* bases[] = {memory.data(), nullptr};
  const int32_t pages[] = {1, -1};
  const auto refused = [&](void (*change)(kvtier_view&, const int32_t*), uint64_t tokens = 8) {
    kvtier_view view = Simple(bases);
    change(view, pages);
    return Destination(view, Spec(2), tokens).status().code() == Code::kInvalidArgument;
  };
  EXPECT_EQ(View::CheckDestination(nullptr, Spec(2), {.first = 0, .count = 2}, 8).status().code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.struct_size = 0; }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.bases = nullptr; }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.n_bases = 3; }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.n_bases = 2; })) << "the second base is NULL";
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.dtype = static_cast<kvtier_dtype>(6); }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.dtype = static_cast<kvtier_dtype>(0); }));
  // As a caller in C may: no value that a kvtier_dtype can have in C++.
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { std::memset(&v.dtype, 0x7f, sizeof(v.dtype)); }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.flags = 2; }));
  const auto paged = [](kvtier_view& v, const int32_t* table) {
    v.page_table = table;
    v.n_pages = 2;
    v.page_tokens = 4;
    v.page_stride = 1024;
  };
  EXPECT_TRUE(refused(paged, 9)) << "nine tokens need three pages";
  EXPECT_TRUE(refused(paged, 8)) << "page -1";
  EXPECT_FALSE(refused(paged, 4));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t* table) { v.page_table = table, v.n_pages = 2; }));
}

TEST(View, GivesEveryLayerItsTypeScalesAndFormOfV) {
  void* bases[] = {memory.data()};
  ModelSpec spec = Spec(2);
  spec.k_scales = {0.5f, 0.25f};
  kvtier_view view = Simple(bases);
  view.dtype = KVTIER_FP8_E5M2;
  view.flags = KVTIER_VIEW_ROTATED_V;
  KvLayerView layer = Destination(view, spec, 8)->Layer(1, 0);
  EXPECT_EQ(layer.dtype, DType::kE5m2);
  EXPECT_EQ(layer.channel_stride, 1);
  EXPECT_EQ(layer.scales, (Fp8Scales{.k = 0.25f, .v = 1}));
  EXPECT_EQ(layer.v_form, VForm::kRotated);
  view.dtype = KVTIER_FP32;
  view.head_stride *= 2, view.token_stride *= 2;
  layer = Destination(view, spec, 8)->Layer(1, 0);
  EXPECT_EQ(layer.channel_stride, 4);
}

TEST(View, OfASourceHasTheTypeOfTheModelAndNoFlags) {
  void* bases[] = {memory.data()};
  const ModelSpec spec = Spec(1);
  kvtier_view view = Simple(bases);
  EXPECT_TRUE(View::CheckSource(&view, spec, 8).ok());
  view.flags = KVTIER_VIEW_ROTATED_V;
  EXPECT_EQ(View::CheckSource(&view, spec, 8).status().code(), Code::kInvalidArgument);
  view.flags = 0;
  for (const kvtier_dtype other : {KVTIER_BF16, KVTIER_FP8_E4M3, KVTIER_FP32}) {
    view.dtype = other;
    EXPECT_EQ(View::CheckSource(&view, spec, 8).status().code(), Code::kInvalidArgument);
  }
}

TEST(View, HasVInMemoryOfItsOwn) {
  void* bases[] = {memory.data()};
  void* v_bases[] = {memory.data() + memory.size() / 2};
  const ModelSpec spec = Spec(2);
  kvtier_view view = Simple(bases);
  view.v_bases = v_bases;
  EXPECT_EQ(Destination(view, spec, 8).status().code(), Code::kInvalidArgument) << "v_offset as well";
  view.v_offset = 0;
  const Result<View> checked = Destination(view, spec, 8);
  ASSERT_TRUE(checked.ok()) << checked.status().ToString();
  EXPECT_EQ(checked->Layer(1, 0).k, memory.data() + view.layer_stride);
  EXPECT_EQ(checked->Layer(1, 0).v, memory.data() + memory.size() / 2 + view.layer_stride);
  v_bases[0] = bases[0];
  EXPECT_EQ(Destination(view, spec, 8).status().code(), Code::kInvalidArgument) << "K and V are one";
  v_bases[0] = nullptr;
  EXPECT_EQ(Destination(view, spec, 8).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier::client
