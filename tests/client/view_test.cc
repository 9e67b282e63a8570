#include "client/src/view.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace kvtier::client {
namespace {

std::array<std::byte, 4096> memory;

kvtier_view Simple(void* const* bases) {
  kvtier_view view{};
  view.struct_size = sizeof(view);
  view.bases = bases;
  view.n_bases = 1;
  view.layer_stride = 1000;
  view.v_offset = 500;
  view.head_stride = 128;
  view.token_stride = 256;
  view.dtype = KVTIER_FP16;
  return view;
}

TEST(View, FindsLayersFromOneBaseOrFromOneEach) {
  void* bases[] = {memory.data(), memory.data() + 2000, memory.data() + 3000};
  kvtier_view view = Simple(bases);
  KvLayerView layer = View::Check(&view, 3, 10)->Layer(2, 4);
  EXPECT_EQ(layer.k, memory.data() + 2000);
  EXPECT_EQ(layer.v, memory.data() + 2500);
  EXPECT_EQ(layer.Row(1, 1), 5 * 256 + 128);
  EXPECT_EQ(layer.channel_stride, 2) << "0 means packed";

  view.n_bases = 3;
  view.channel_stride = 4;
  layer = View::Check(&view, 3, 10)->Layer(2, 0);
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
  const KvLayerView layer = View::Check(&view, 1, 12)->Layer(0, 4);
  EXPECT_EQ(layer.Row(0, 0), 20'000);
  EXPECT_EQ(layer.Row(1, 5), 50'000 + 256 + 128);
}

TEST(View, RefusesWhatItCannotFollow) {
  void* bases[] = {memory.data(), nullptr};
  const int32_t pages[] = {1, -1};
  const auto refused = [&](void (*change)(kvtier_view&, const int32_t*), uint64_t tokens = 8) {
    kvtier_view view = Simple(bases);
    change(view, pages);
    return View::Check(&view, 2, tokens).status().code() == Code::kInvalidArgument;
  };
  EXPECT_EQ(View::Check(nullptr, 2, 8).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.struct_size = 0; }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.bases = nullptr; }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.n_bases = 3; }));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.n_bases = 2; })) << "the second base is NULL";
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t*) { v.dtype = static_cast<kvtier_dtype>(3); }));
  const auto paged = [](kvtier_view& v, const int32_t* table) {
    v.page_table = table;
    v.n_pages = 2;
    v.page_tokens = 4;
  };
  EXPECT_TRUE(refused(paged, 9)) << "nine tokens need three pages";
  EXPECT_TRUE(refused(paged, 8)) << "page -1";
  EXPECT_FALSE(refused(paged, 4));
  EXPECT_TRUE(refused([](kvtier_view& v, const int32_t* table) { v.page_table = table, v.n_pages = 2; }));
}

}  // namespace
}  // namespace kvtier::client
