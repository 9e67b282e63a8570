// Every way an engine lays K and V out, through the real daemon and back, bit for bit.
#include <algorithm>
#include <cstring>
#include <functional>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

constexpr size_t kTokens = 3 * kBlockTokens + 10;  // three blocks and a tail
constexpr uint16_t kUntouched = 0xCDCD;

/// Memory of an engine: a view, and where element (layer, K or V, head, token, channel) is by its own
/// reckoning.
struct EngineMemory {
  std::vector<uint16_t> memory;
  std::vector<void*> bases, v_bases;
  std::vector<int32_t> pages;
  kvtier_view view{};
  std::function<size_t(size_t layer, size_t v, size_t head, size_t token, size_t channel)> index;
};

void UseOneBase(EngineMemory& m, size_t elements) {
  m.memory.assign(elements, kUntouched);
  m.bases = {m.memory.data()};
  m.view = api::ContiguousView(m.bases.data(), 1);
}

/// [layer][K, V][head][token][channel]
EngineMemory HeadMajor() {
  EngineMemory m;
  constexpr size_t kHead = kTokens * kDim, kPlane = kHeads * kHead;
  UseOneBase(m, kLayers * 2 * kPlane);
  m.view.layer_stride = 2 * kPlane * 2, m.view.v_offset = kPlane * 2;
  m.view.head_stride = kHead * 2, m.view.token_stride = kDim * 2;
  m.index = [=](size_t l, size_t v, size_t h, size_t t, size_t c) {
    return (2 * l + v) * kPlane + h * kHead + t * kDim + c;
  };
  return m;
}

/// [layer][token][head][K, V][channel]: K and V of a head side by side.
EngineMemory PackedTokenMajor() {
  EngineMemory m;
  constexpr size_t kHead = 2 * kDim, kToken = kHeads * kHead, kLayer = kTokens * kToken;
  UseOneBase(m, kLayers * kLayer);
  m.view.layer_stride = kLayer * 2, m.view.v_offset = kDim * 2;
  m.view.head_stride = kHead * 2, m.view.token_stride = kToken * 2;
  m.index = [=](size_t l, size_t v, size_t h, size_t t, size_t c) {
    return l * kLayer + t * kToken + h * kHead + v * kDim + c;
  };
  return m;
}

/// One tensor a layer, each [K, V][head][channel][token]: channels far apart.
EngineMemory ChannelStrided() {
  EngineMemory m;
  constexpr size_t kHead = kDim * kTokens, kPlane = kHeads * kHead, kLayer = 2 * kPlane;
  m.memory.assign(kLayers * kLayer, kUntouched);
  for (size_t l = 0; l < kLayers; ++l) m.bases.push_back(m.memory.data() + (kLayers - 1 - l) * kLayer);
  m.view = api::ContiguousView(m.bases.data(), kLayers);
  m.view.v_offset = kPlane * 2, m.view.head_stride = kHead * 2, m.view.token_stride = 2,
  m.view.channel_stride = kTokens * 2;
  m.index = [=](size_t l, size_t v, size_t h, size_t t, size_t c) {
    return (kLayers - 1 - l) * kLayer + v * kPlane + h * kHead + c * kTokens + t;
  };
  return m;
}

/// Pages of 16 tokens, [page][layer][K, V][token][head][channel], in an order of their own and with pages of
/// others between.
EngineMemory Paged() {
  EngineMemory m;
  constexpr size_t kPageTokens = 16, kUsed = (kTokens + kPageTokens - 1) / kPageTokens;
  constexpr size_t kToken = kHeads * kDim, kPlane = kPageTokens * kToken, kLayer = 2 * kPlane,
                   kPage = kLayers * kLayer;
  UseOneBase(m, 2 * kUsed * kPage);
  for (size_t p = 0; p < kUsed; ++p)
    m.pages.push_back(static_cast<int32_t>(2 * kUsed - 1 - 2 * ((p * 5) % kUsed)));
  m.view.layer_stride = kLayer * 2, m.view.v_offset = kPlane * 2;
  m.view.head_stride = kDim * 2, m.view.token_stride = kToken * 2;
  m.view.page_table = m.pages.data(), m.view.n_pages = kUsed, m.view.page_tokens = kPageTokens,
  m.view.page_stride = kPage * 2;
  m.index = [=, pages = m.pages](size_t l, size_t v, size_t h, size_t t, size_t c) {
    return static_cast<size_t>(pages[t / kPageTokens]) * kPage + l * kLayer + v * kPlane +
           (t % kPageTokens) * kToken + h * kDim + c;
  };
  return m;
}

/// K and V of every layer in memory of their own, [token][head][channel], in no order.
EngineMemory Apart() {
  EngineMemory m;
  constexpr size_t kToken = kHeads * kDim, kPlane = kTokens * kToken;
  m.memory.assign(2 * kLayers * kPlane, kUntouched);
  const auto place = [](size_t l, size_t v) { return (2 * l + v) * 3 % (2 * kLayers); };
  for (size_t l = 0; l < kLayers; ++l) m.bases.push_back(m.memory.data() + place(l, 0) * kPlane);
  for (size_t l = 0; l < kLayers; ++l) m.v_bases.push_back(m.memory.data() + place(l, 1) * kPlane);
  m.view = api::ContiguousView(m.bases.data(), kLayers);
  m.view.v_bases = m.v_bases.data();
  m.view.head_stride = kDim * 2, m.view.token_stride = kToken * 2;
  m.index = [=](size_t l, size_t v, size_t h, size_t t, size_t c) {
    return place(l, v) * kPlane + t * kToken + h * kDim + c;
  };
  return m;
}

struct Layout {
  const char* name;
  EngineMemory (*make)();
};
constexpr Layout kLayouts[] = {{"HeadMajor", HeadMajor},
                               {"PackedTokenMajor", PackedTokenMajor},
                               {"ChannelStrided", ChannelStrided},
                               {"Paged", Paged},
                               {"Apart", Apart}};

template <typename Visit>
void ForEachElement(const Visit& visit) {
  for (size_t l = 0; l < kLayers; ++l)
    for (size_t v = 0; v < 2; ++v)
      for (size_t h = 0; h < kHeads; ++h)
        for (size_t t = 0; t < kTokens; ++t)
          for (size_t c = 0; c < kDim; ++c) visit(l, v, h, t, c);
}

/// A value that names its place.
uint16_t ValueOf(size_t l, size_t v, size_t h, size_t t, size_t c) {
  return static_cast<uint16_t>(0x3000 + ((((l * 2 + v) * kHeads + h) * kTokens + t) * kDim + c) % 0x4bff);
}

class Views : public E2eTest, public testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(Views, S06_PutFromOneLayoutAndFetchIntoAnotherIsBitExact) {
  const Layout& from = kLayouts[std::get<0>(GetParam())];
  const Layout& to = kLayouts[std::get<1>(GetParam())];
  SCOPED_TRACE(std::string(from.name) + " to " + to.name);
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, kTokens));

  EngineMemory source = from.make();
  ForEachElement([&](auto... at) { source.memory[source.index(at...)] = ValueOf(at...); });
  const auto ticket = engine.model.Put(sequence.Query(), source.view);
  ASSERT_TRUE(ticket) << api::LastError();
  std::ranges::fill(source.memory, uint16_t{0});  // a put that returned has copied (S08)
  ASSERT_EQ(engine.client.Wait(*ticket), KVTIER_OK) << api::LastError();

  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  ASSERT_EQ(lease->tokens(), kTokens);
  EngineMemory target = to.make();
  std::vector<kvtier_block_result> results(lease->count());
  ASSERT_EQ(lease->Fetch(0, target.view, results), KVTIER_OK) << api::LastError();
  size_t wrong = 0, written = 0;
  ForEachElement([&](auto... at) {
    wrong += target.memory[target.index(at...)] != ValueOf(at...) ? 1 : 0;
    ++written;
  });
  EXPECT_EQ(wrong, 0u);
  const auto untouched = static_cast<size_t>(std::ranges::count(target.memory, kUntouched));
  EXPECT_EQ(untouched, target.memory.size() - written) << "bytes outside the view were written";
}

INSTANTIATE_TEST_SUITE_P(AllPairs, Views, testing::Combine(testing::Range(0, 5), testing::Range(0, 5)));

class LayerRanges : public E2eTest {};

TEST_F(LayerRanges, FetchOfSomeLayersAndBlocksTouchesNothingElse) {
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, 4 * kBlockTokens));
  Kv kv = Kv::Random(1, 4 * kBlockTokens);
  engine.Put(sequence, kv);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease);

  Kv out(4 * kBlockTokens);
  std::ranges::fill(out.values(), kUntouched);
  std::vector<kvtier_block_result> results(2);
  ASSERT_EQ(lease->FetchLayers(1, 2, 1, out.View(kBlockTokens), results), KVTIER_OK);
  const size_t plane = 4 * kBlockTokens * kDim;
  for (size_t i = 0; i < out.values().size(); ++i) {
    const size_t layer = i / (2 * kHeads * plane), token = i % plane / kDim;
    const bool fetched = layer == 2 && token >= kBlockTokens && token < 3 * kBlockTokens;
    ASSERT_EQ(out.values()[i], fetched ? kv.values()[i] : kUntouched) << "element " << i;
  }
  EXPECT_EQ(lease->FetchLayers(0, 3, 2, out.View(), results), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(lease->Fetch(3, out.View(), results), KVTIER_INVALID_ARGUMENT);
}

TEST_F(LayerRanges, StridesThatCannotBeAreRefusedAndNothingIsTouched) {
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, 2 * kBlockTokens));
  Kv kv = Kv::Random(1, 2 * kBlockTokens), out(2 * kBlockTokens);
  engine.Put(sequence, kv);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease);
  std::vector<kvtier_block_result> results(2);
  std::ranges::fill(out.values(), kUntouched);
  kvtier_view view = out.View();
  view.v_offset = 0;
  EXPECT_EQ(lease->Fetch(0, view, results), KVTIER_INVALID_ARGUMENT);
  EXPECT_NE(api::LastError().find("v_offset"), std::string::npos) << api::LastError();
  view = out.View();
  view.token_stride = INT64_MAX;
  EXPECT_EQ(lease->Fetch(0, view, results), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(out.values(), kUntouched)), out.values().size());
  view = kv.View();
  view.head_stride = INT64_MIN;
  EXPECT_EQ(engine.model.Put(engine.Keys(Tokens(2, 2 * kBlockTokens)).Query(), view).code(),
            KVTIER_INVALID_ARGUMENT);

  view = out.View();
  view.layer_stride = 0;
  EXPECT_EQ(lease->Fetch(0, view, results), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(lease->FetchLayers(0, 3, 1, view, results), KVTIER_OK)
      << "one layer, wherever the engine wants it";
}

TEST_F(LayerRanges, Bf16ModelsComeBackBitExact) {
  StartDaemon({});
  kvtier_model_spec spec = TestSpec("bf16");
  spec.dtype = KVTIER_BF16;
  const Engine engine = Connect(spec);
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlockTokens));
  Kv kv = Kv::Random(3, kBlockTokens);  // any 16 bits will do
  kvtier_view view = kv.View();
  EXPECT_EQ(engine.model.Put(sequence.Query(), view).code(), KVTIER_INVALID_ARGUMENT)
      << "fp16 is not the model's";
  view.dtype = KVTIER_BF16;
  const auto ticket = engine.model.Put(sequence.Query(), view);
  ASSERT_TRUE(ticket);
  ASSERT_EQ(engine.client.Wait(*ticket), KVTIER_OK);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease);
  Kv out(kBlockTokens);
  kvtier_view destination = out.View();
  destination.dtype = KVTIER_BF16;
  std::vector<kvtier_block_result> results(1);
  ASSERT_EQ(lease->Fetch(0, destination, results), KVTIER_OK);
  EXPECT_EQ(out.values(), kv.values());
  EXPECT_EQ(results[0].precision, KVTIER_BITS16);
}

}  // namespace
}  // namespace kvtier::e2e
