// Which blocks are stored, and where their rows lie in a state.
#include "client/engines/llamacpp/seq_blocks.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/llamacpp/states.h"

namespace kvtier::llamacpp {
namespace {

constexpr SeqShape kShape{.layers = 3, .row_bytes = 2 * 4 * 2};
constexpr HeadShape kHeads{.kv_heads = 2, .head_dim = 4};

/// The address that kvtier.h gives element (layer, plane, head, token, channel 0).
const std::byte* AddressOf(const kvtier_view& view, uint32_t layer, int plane, uint32_t head,
                           uint32_t token) {
  const auto* base = static_cast<const std::byte*>(view.bases[0]) + layer * view.layer_stride;
  const int64_t row = view.page_table == nullptr
                          ? token * view.token_stride
                          : view.page_table[token / view.page_tokens] * view.page_stride +
                                token % view.page_tokens * view.token_stride;
  return base + plane * view.v_offset + row + head * view.head_stride;
}

void ExpectRows(const kvtier_view& view, const SeqState& state, const std::vector<uint32_t>& cell_of_token) {
  EXPECT_EQ(view.n_bases, 1u);
  for (uint32_t layer = 0; layer < kShape.layers; ++layer) {
    for (uint32_t head = 0; head < kHeads.kv_heads; ++head) {
      for (uint32_t token = 0; token < cell_of_token.size(); ++token) {
        const uint64_t offset = cell_of_token[token] * kShape.row_bytes + head * kHeads.head_dim * 2;
        EXPECT_EQ(AddressOf(view, layer, 0, head, token), state.K(layer) + offset);
        EXPECT_EQ(AddressOf(view, layer, 1, head, token), state.V(layer) + offset);
      }
    }
  }
}

std::vector<kvtier_block_ref> Refs(uint32_t tokens, uint32_t tokens_per_block) {
  std::vector<kvtier_block_ref> refs;
  for (uint32_t at = 0; at < tokens; at += tokens_per_block) {
    refs.push_back(
        {.key = {}, .parent = {}, .position = at, .tokens = std::min(tokens_per_block, tokens - at)});
  }
  return refs;
}

TEST(SourceRows, AreTheCellsInTheOrderOfTheSequence) {
  const std::vector<std::byte> bytes = StateOf(kShape, {66, 64, 67, 65}, 1);
  const Result<SeqState> state = SeqState::Parse(bytes, kShape);
  ASSERT_TRUE(state.ok());
  const Result<SourceRows> rows = SourceRows::Make(*state, kHeads, 64);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ExpectRows(rows->View(), *state, {1, 3, 0, 2});
  EXPECT_GE(rows->View().n_pages, 4u);
}

TEST(SourceRows, NeedNoTableWhereTheCellsAreInOrder) {
  const std::vector<std::byte> bytes = StateOf(kShape, {64, 65, 66}, 1);
  const Result<SeqState> state = SeqState::Parse(bytes, kShape);
  ASSERT_TRUE(state.ok());
  const Result<SourceRows> rows = SourceRows::Make(*state, kHeads, 64);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->View().page_table, nullptr);
  ExpectRows(rows->View(), *state, {0, 1, 2});
}

TEST(SourceRows, AreRefusedUnlessEveryPositionIsThereOnce) {
  for (const std::vector<int32_t>& positions :
       {std::vector<int32_t>{64, 66}, {64, 64}, {63, 64}, {65, 66}, {64, 65, 67}, {2'147'483'647, 64}, {}}) {
    const std::vector<std::byte> bytes = StateOf(kShape, positions, 1);
    const Result<SeqState> state = SeqState::Parse(bytes, kShape);
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(SourceRows::Make(*state, kHeads, 64).status().code(), Code::kInvalidArgument);
  }
}

TEST(SourceRows, WorkForAModelOfOneLayer) {
  constexpr SeqShape kOne{.layers = 1, .row_bytes = 16};
  const std::vector<std::byte> bytes = StateOf(kOne, {0, 1}, 1);
  const Result<SeqState> state = SeqState::Parse(bytes, kOne);
  ASSERT_TRUE(state.ok());
  const Result<SourceRows> rows = SourceRows::Make(*state, kHeads, 0);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(AddressOf(rows->View(), 0, 1, 1, 1), state->V(0) + 16 + 8);
}

TEST(DestinationRows, AreThoseOfTheBuffer) {
  SeqStateBuffer buffer(kShape, 128, 5);
  void* base = nullptr;
  const kvtier_view view = DestinationRows(buffer, kHeads, &base);
  const Result<SeqState> state = SeqState::Parse(buffer.bytes(), kShape);
  ASSERT_TRUE(state.ok());
  ExpectRows(view, *state, {0, 1, 2, 3, 4});
}

TEST(OwnBlocks, BeginBehindWhatWasRestored) {
  const std::vector<kvtier_block_ref> refs = Refs(300, 128);  // 128, 128, 44
  EXPECT_EQ(OwnBlocks(refs, 0), (BlockRun{0, 3}));
  EXPECT_EQ(OwnBlocks(refs, 128), (BlockRun{1, 2}));
  EXPECT_EQ(OwnBlocks(refs, 256), (BlockRun{2, 1}));
  EXPECT_EQ(OwnBlocks(refs, 384), (BlockRun{3, 0}));
  // Part of a block came from the cache: the block is not the engine's own.
  EXPECT_EQ(OwnBlocks(refs, 1), (BlockRun{1, 2}));
  EXPECT_EQ(OwnBlocks(refs, 130), (BlockRun{2, 1}));
  EXPECT_EQ(OwnBlocks({}, 0), (BlockRun{0, 0}));
}

TEST(FrontWithin, TakesWholeBlocksUpToTheBound) {
  const std::vector<kvtier_block_ref> refs = Refs(300, 128);
  constexpr uint64_t kTokenBytes = 10;
  EXPECT_EQ(FrontWithin({0, 3}, refs, kTokenBytes, 3000), (BlockRun{0, 3}));
  EXPECT_EQ(FrontWithin({0, 3}, refs, kTokenBytes, 2999), (BlockRun{0, 2}));
  EXPECT_EQ(FrontWithin({1, 2}, refs, kTokenBytes, 1720), (BlockRun{1, 2}));
  EXPECT_EQ(FrontWithin({1, 2}, refs, kTokenBytes, 1719), (BlockRun{1, 1}));
  EXPECT_EQ(FrontWithin({0, 3}, refs, kTokenBytes, 1), (BlockRun{0, 1})) << "progress is made in any case";
  EXPECT_EQ(FrontWithin({3, 0}, refs, kTokenBytes, 3000), (BlockRun{3, 0}));
}

}  // namespace
}  // namespace kvtier::llamacpp
