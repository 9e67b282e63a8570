// The parts of kvtier-eval that need no model: scores, contexts through every method, facts, windows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <set>

#include "kernels/numerics.h"
#include "tests/eval/facts.h"
#include "tests/eval/logits_score.h"
#include "tests/eval/methods.h"
#include "tests/eval/texts.h"
#include "tests/support/blocks.h"

namespace kvtier::eval {
namespace {

TEST(Logits, EqualOnesScoreExactlyZero) {
  const std::vector<float> logits = {0.5f, -2, 7, 1e-3f, 3, 3};
  for (const TokenScore& token : RightLogits(logits, {2, 0}).Score(logits)) {
    EXPECT_EQ(token.kl, 0);
    EXPECT_EQ(token.nll_change, 0);
    EXPECT_TRUE(token.same_top);
  }
}

TEST(Logits, ScoresAreThoseOfTheDefinitions) {
  // Probabilities 3/4 and 1/4 against 1/2 and 1/2, shifted by what a softmax does not see.
  const std::vector<float> right = {std::log(3.0f) + 5, 5}, tried = {-1, -1};
  const TokenScore token = RightLogits(right, {1}).Score(tried)[0];
  EXPECT_NEAR(token.kl, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(token.nll_change, std::log(0.25) - std::log(0.5), 1e-7);
  EXPECT_FALSE(token.hit) << "the first of equals is the top";
  EXPECT_TRUE(RightLogits(right, {1}).Score(std::vector<float>{0, -1})[0].same_top);
  EXPECT_FALSE(RightLogits(right, {1}).Score(std::vector<float>{-1, 0})[0].same_top);
}

TEST(Logits, DamageThatLeavesTheTextAsLikelyShowsInKlAlone) {
  // All but the text's own next token change places: perplexity sees nothing of it, nor does the top token.
  const std::vector<float> right = {2, 1, 0, -1}, tried = {2, -1, 0, 1};
  const TokenScore token = RightLogits(right, {0}).Score(tried)[0];
  EXPECT_NEAR(token.nll_change, 0, 1e-12);
  EXPECT_TRUE(token.same_top && token.hit);
  EXPECT_GT(token.kl, 0.3);
}

TEST(Logits, SummaryIsOfWindowsAndItsPercentileOfTokens) {
  std::vector<std::vector<TokenScore>> windows(2, std::vector<TokenScore>(100));
  windows[0][7].kl = 100;
  windows[0][8].kl = 50;
  windows[1][3] = {.kl = 350, .nll_change = 2, .same_top = false};
  const Summary summary = Summarize(windows);
  EXPECT_DOUBLE_EQ(summary.kl, 2.5);
  EXPECT_DOUBLE_EQ(summary.kl_error, 1) << "half the distance of two means";
  EXPECT_DOUBLE_EQ(summary.kl_p99, 50);
  EXPECT_DOUBLE_EQ(summary.top1, 0.995);
  EXPECT_DOUBLE_EQ(summary.nll_change, 0.01);
  EXPECT_EQ(summary.tokens, 200u);
  EXPECT_TRUE(std::isnan(Summarize({windows.data(), 1}).kl_error)) << "nobody knows";
}

constexpr uint32_t kContextTokens = 300;  // no whole number of blocks
constexpr llamacpp::HeadShape kHeads = {.kv_heads = 2, .head_dim = 64};

std::vector<std::byte> RandomState(uint32_t layers = 2, llamacpp::HeadShape heads = kHeads,
                                   uint32_t tokens = kContextTokens) {
  const llamacpp::SeqShape shape = {.layers = layers, .row_bytes = heads.kv_heads * heads.head_dim * 2};
  llamacpp::SeqStateBuffer buffer(shape, 0, tokens);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (std::byte* plane : {buffer.K(layer), buffer.V(layer)}) {
      for (uint32_t at = 0; at < tokens * shape.row_bytes; at += 2)
        Store16(plane + at, Fp16FromFp32(normal(rng)));
    }
  }
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

/// Relative error between two states' rows, bit by bit the same elsewhere.
double ErrorOf(const ContextKv& a, const ContextKv& b) {
  double squares = 0, differences = 0;
  for (size_t at = 0; at + 2 <= a.state().size(); at += 2) {
    if (std::memcmp(&a.state()[at], &b.state()[at], 2) == 0) {
      const double same = Fp32FromFp16(Load16(&a.state()[at]));
      squares += std::isfinite(same) ? same * same : 0;
      continue;
    }
    const double right = Fp32FromFp16(Load16(&a.state()[at])), tried = Fp32FromFp16(Load16(&b.state()[at]));
    squares += right * right;
    differences += (right - tried) * (right - tried);
  }
  return std::sqrt(differences / squares);
}

TEST(Methods, EachKeepsAsMuchOfTheContextAsItsBitsAllow) {
  const Result<ContextKv> context = ContextKv::Make(RandomState(), kHeads);
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  std::set<std::string> names;
  for (const Method& method : AllMethods()) {
    SCOPED_TRACE(method.name);
    EXPECT_TRUE(names.insert(method.name).second);
    ContextKv stored = *context;
    const Result<double> bits = method.store(stored);
    ASSERT_TRUE(bits.ok()) << bits.status().ToString();
    const double per_element = *bits / context->elements(), error = ErrorOf(*context, stored);
    if (method.name == kExactMethod) {
      EXPECT_EQ(error, 0);
      EXPECT_GE(per_element, 16);
      continue;
    }
    EXPECT_GT(error, 0);
    EXPECT_GT(per_element, 2);
    if (method.name == "ladder") continue;  // its tokens differ in bits
    // Some twice of what an ideal uniform quantizer of so many bits over 8 standard deviations would do.
    EXPECT_LT(error, 2.2 * 8 / std::sqrt(12.0) * std::exp2(-std::floor(per_element)));
    EXPECT_TRUE(ContextKv::Make({stored.state().begin(), stored.state().end()}, kHeads).ok());
  }
  for (const Rule& rule : Rules()) EXPECT_TRUE(names.contains(rule.better));
}

TEST(Methods, BlocksAreTheWholeContextInOrder) {
  Result<ContextKv> context = ContextKv::Make(RandomState(), kHeads);
  ASSERT_TRUE(context.ok());
  size_t with_blocks = 0;
  for (const Method& method : AllMethods()) {
    if (!method.encode) continue;
    SCOPED_TRACE(method.name);
    const Result<std::vector<StoredBlock>> blocks = method.encode(*context);
    ASSERT_TRUE(blocks.ok()) << blocks.status().ToString();
    uint64_t token = 0;
    for (const StoredBlock& block : *blocks) {
      EXPECT_EQ(block.image.identity.first_position, token);
      EXPECT_EQ(block.image.bytes.data(), block.owned.bytes.data());
      token += block.image.identity.shape.tokens;
    }
    EXPECT_EQ(token, kContextTokens);
    ContextKv stored = *context;
    EXPECT_EQ(*method.store(stored), BitsOf(*blocks));
    ++with_blocks;
  }
  EXPECT_GE(with_blocks, AllCodecs().size() - 1) << "all but raw8";
}

TEST(Context, ABlankOneHasItsTokensAndNothingOfTheirKv) {
  Result<ContextKv> context = ContextKv::Make(RandomState(), kHeads);
  ASSERT_TRUE(context.ok());
  context->Blank();
  Result<ContextKv> blank = ContextKv::Make({context->state().begin(), context->state().end()}, kHeads);
  ASSERT_TRUE(blank.ok()) << blank.status().ToString();
  EXPECT_EQ(blank->tokens(), kContextTokens);
  const size_t row = kHeads.kv_heads * kHeads.head_dim * 2;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const KvLayerView view = blank->View(layer, 0);
    for (const std::byte* rows : {view.k, view.v})
      EXPECT_TRUE(
          std::all_of(rows, rows + kContextTokens * row, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(Methods, ACodecChangesTheTokensOfItsBlocksAlone) {
  const Result<ContextKv> context = ContextKv::Make(RandomState(), kHeads);
  ASSERT_TRUE(context.ok());
  ContextKv stored = *context, right = *context;
  const std::vector<Method> methods = AllMethods();
  const auto ladder =
      std::find_if(methods.begin(), methods.end(), [](const Method& m) { return m.name == "ladder"; });
  ASSERT_NE(ladder, methods.end());
  ASSERT_TRUE(ladder->store(stored).ok());
  // Three blocks: the first is on the highest rung.
  const size_t row = kHeads.kv_heads * kHeads.head_dim * 2;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(std::memcmp(right.View(layer, 0).k, stored.View(layer, 0).k, 128 * row), 0);
    EXPECT_EQ(std::memcmp(right.View(layer, 0).v, stored.View(layer, 0).v, 128 * row), 0);
    EXPECT_NE(std::memcmp(right.View(layer, 128).k, stored.View(layer, 128).k, row), 0);
    EXPECT_NE(std::memcmp(right.View(layer, 299).v, stored.View(layer, 299).v, row), 0);
  }
}

TEST(Context, CellsThatAreNotInOrderAreRefused) {
  std::vector<std::byte> state = RandomState();
  std::swap_ranges(state.begin() + 16, state.begin() + 28, state.begin() + 28);
  EXPECT_EQ(ContextKv::Make(state, kHeads).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(ContextKv::Make(RandomState(), {.kv_heads = 2, .head_dim = 32}).ok());
}

TEST(Methods, FullBlocksOfSmolLm2TakeNoMoreBytesThanPromised) {
  constexpr llamacpp::HeadShape kSmolLm2Heads = {.kv_heads = 3, .head_dim = 64};
  constexpr uint32_t kLayers = 30, kTokens = 256;
  const std::vector<std::byte> state = RandomState(kLayers, kSmolLm2Heads, kTokens);
  Result<ContextKv> context = ContextKv::Make(state, kSmolLm2Heads);
  ASSERT_TRUE(context.ok());
  const auto of_fp16 = [&](const std::string& name) {
    const std::vector<Method> methods = AllMethods();
    const auto method =
        std::find_if(methods.begin(), methods.end(), [&](const Method& m) { return m.name == name; });
    ContextKv stored = *context;
    return method->store(stored).value() / (16 * context->elements());
  };
  EXPECT_LE(of_fp16("kv4p"), 0.27);
  EXPECT_LE(of_fp16("kv2p"), 0.175);
}

TEST(Methods, RulesAreOfSomeThatExist) {
  const std::vector<std::string> names = MethodNames();
  const std::set<std::string> known(names.begin(), names.end());
  EXPECT_EQ(known.size(), names.size());
  EXPECT_TRUE(known.contains(kExactMethod));
  for (const Rule& rule : Rules()) EXPECT_TRUE(known.contains(rule.better) && known.contains(rule.worse));
}

TEST(Facts, AreHiddenOnceAndEvenlyInAContextOfTheRightLength) {
  const std::vector<std::vector<int32_t>> statements = {{1000, 1001}, {2000}, {3000, 3001, 3002}};
  std::vector<int32_t> filler(500);
  for (size_t i = 0; i < filler.size(); ++i) filler[i] = static_cast<int32_t>(i);
  const std::vector<int32_t> context = HideFacts(filler, statements, 406);
  ASSERT_EQ(context.size(), 406u);
  EXPECT_EQ(std::find(context.begin(), context.end(), 1000) - context.begin(), 100);
  EXPECT_EQ(std::find(context.begin(), context.end(), 2000) - context.begin(), 202);
  EXPECT_EQ(std::find(context.begin(), context.end(), 3000) - context.begin(), 303);
  EXPECT_EQ(context.back(), 399);
}

TEST(Facts, DifferInNamesAndAnswers) {
  const std::vector<Fact> facts = MakeFacts(kFactsMax, 3);
  std::set<std::string> statements, questions;
  for (const Fact& fact : facts) {
    statements.insert(fact.statement);
    questions.insert(fact.question);
    EXPECT_NE(fact.statement.find(fact.answer), std::string::npos);
    EXPECT_EQ(fact.question.find(fact.answer), std::string::npos);
  }
  EXPECT_EQ(statements.size(), kFactsMax);
  EXPECT_EQ(questions.size(), kFactsMax);
  EXPECT_NE(MakeFacts(8, 3)[0].statement, MakeFacts(8, 4)[0].statement);
}

TEST(Texts, WindowsDoNotOverlapAndReachBothEnds) {
  const Result<std::vector<size_t>> starts = WindowStarts(1000, 100, 4);
  ASSERT_TRUE(starts.ok());
  EXPECT_EQ(*starts, (std::vector<size_t>{0, 300, 600, 900}));
  EXPECT_TRUE(WindowStarts(400, 100, 4).ok());
  EXPECT_FALSE(WindowStarts(399, 100, 4).ok());
  EXPECT_EQ(LoadText("prose=/nowhere").status().code(), Code::kNotFound);
  EXPECT_EQ(LoadText("prose").status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier::eval
