#include "client/src/query.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace kvtier::client {
namespace {

/// 64 tokens a block; 150 tokens: two full blocks and a tail of 22.
class QueryTest : public testing::Test {
 protected:
  QueryTest() : tokens_(150) {
    model_.spec.tokens_per_block = 64;
    std::iota(tokens_.begin(), tokens_.end(), 1000);
    for (const BlockRef& ref : ChainKeys(model_.name_space, 64, tokens_)) {
      kvtier_block_ref c{};
      std::memcpy(c.key, ref.key.bytes.data(), 32);
      std::memcpy(c.parent, ref.parent.bytes.data(), 32);
      c.position = ref.position;
      c.tokens = ref.tokens;
      refs_.push_back(c);
    }
  }
  kvtier_query Raw(bool with_tokens) const {
    kvtier_query query{};
    query.struct_size = sizeof(query);
    query.refs = refs_.data();
    query.count = refs_.size();
    if (with_tokens) query.tokens = tokens_.data(), query.n_tokens = tokens_.size();
    return query;
  }
  Query Checked(const kvtier_query& raw) const { return std::move(CheckQuery(model_, &raw)).value(); }
  v1::TailChild Tail(size_t after_blocks, uint32_t count) const {
    const Key parent = after_blocks == 0 ? RootKey(model_.name_space) : KeyOf(refs_[after_blocks - 1].key);
    const uint64_t position = after_blocks * 64;
    v1::TailChild child;
    child.set_tokens(count);
    child.set_key(
        std::string(TailKey(parent, position, std::span(tokens_).subspan(position, count)).AsStringView()));
    return child;
  }
  v1::TailChild ForeignTail(uint32_t count) const {
    v1::TailChild child;
    child.set_tokens(count);
    child.set_key(std::string(32, 'x'));
    return child;
  }
  bool Refused(const kvtier_query& raw) const {
    return CheckQuery(model_, &raw).status().code() == Code::kInvalidArgument;
  }

  Model model_;
  std::vector<int32_t> tokens_;
  std::vector<kvtier_block_ref> refs_;
};

TEST_F(QueryTest, SeparatesFullBlocksFromTheTail) {
  const kvtier_query raw = Raw(true);
  const Query query = Checked(raw);
  EXPECT_EQ(query.full.size(), 2u);
  EXPECT_EQ(query.tail, &refs_[2]);
  EXPECT_EQ(query.limit, 150u);
  EXPECT_EQ(query.PositionOf(2), 128u);
  EXPECT_EQ(PackKeys(query.full).size(), 64u);
}

TEST_F(QueryTest, LeavesTheLastTokenToTheEngineWhenAsked) {
  kvtier_query raw = Raw(false);
  raw.before_last_token = 1;
  EXPECT_EQ(Checked(raw).full.size(), 2u);
  raw.count = 2;  // 128 tokens: the second block would cover the last one
  EXPECT_EQ(Checked(raw).full.size(), 1u);
  EXPECT_EQ(Checked(raw).limit, 127u);
}

TEST_F(QueryTest, RefusesBlocksThatAreNotAChain) {
  EXPECT_TRUE(CheckQuery(model_, nullptr).status().code() == Code::kInvalidArgument);
  kvtier_query raw = Raw(true);
  raw.struct_size = 4;
  EXPECT_TRUE(Refused(raw));
  raw = Raw(true);
  raw.count = 0;
  EXPECT_TRUE(Refused(raw));
  raw = Raw(true);
  raw.n_tokens = 149;
  EXPECT_TRUE(Refused(raw)) << "tokens end before the tail does";
  raw = Raw(true);
  raw.tokens = nullptr;
  EXPECT_TRUE(Refused(raw));

  const std::vector<kvtier_block_ref> good = refs_;
  refs_[1].parent[5] ^= 1;
  EXPECT_TRUE(Refused(Raw(false)));
  refs_ = good;
  refs_[1].position += 64;
  EXPECT_TRUE(Refused(Raw(false)));
  refs_ = good;
  refs_[1].tokens = 10;
  EXPECT_TRUE(Refused(Raw(false))) << "a tail in the middle";
  refs_ = good;
  refs_[2].tokens = 65;
  EXPECT_TRUE(Refused(Raw(false)));
  refs_ = good;
  refs_[0].position = 3;
  EXPECT_TRUE(Refused(Raw(false)));
}

TEST_F(QueryTest, OfABlockWhosePositionSumsWouldOverflowIsRefused) {
  // Else the tokens behind it are looked for where none are.
  refs_.resize(1);
  refs_[0].position = UINT64_MAX - 63;
  EXPECT_TRUE(Refused(Raw(true)));
  refs_[0].position = uint64_t{1} << 40;
  EXPECT_FALSE(Refused(Raw(false)));
}

TEST_F(QueryTest, ChoosesTheLongestTailThatIsAPrefix) {
  const kvtier_query raw = Raw(true);
  const Query query = Checked(raw);
  const std::vector<v1::TailChild> tails = {Tail(2, 5), ForeignTail(21), Tail(2, 20), Tail(2, 7)};
  EXPECT_EQ(ChooseTail(query, 2, tails), 2u);
  EXPECT_EQ(ChooseTail(query, 2, std::span(tails).first(2)), 0u);
  EXPECT_EQ(ChooseTail(query, 2, std::span(tails).subspan(1, 1)), std::nullopt);
  EXPECT_EQ(ChooseTail(query, 1, tails), std::nullopt) << "tails of another block";
}

TEST_F(QueryTest, FindsTailsOfABlockInTheMiddleToo) {
  const kvtier_query raw = Raw(true);
  const Query query = Checked(raw);
  const std::vector<v1::TailChild> tails = {Tail(1, 63)};
  EXPECT_EQ(ChooseTail(query, 1, tails), 0u);
}

TEST_F(QueryTest, TakesNoTailThatReachesTheLastToken) {
  kvtier_query raw = Raw(true);
  raw.before_last_token = 1;
  const Query query = Checked(raw);
  const std::vector<v1::TailChild> tails = {Tail(2, 22), Tail(2, 21)};
  EXPECT_EQ(ChooseTail(query, 2, tails), 1u);
}

TEST_F(QueryTest, KnowsItsOwnTailWithoutTokens) {
  const kvtier_query raw = Raw(false);
  const Query query = Checked(raw);
  const std::vector<v1::TailChild> tails = {Tail(2, 20), Tail(2, 22)};
  EXPECT_EQ(ChooseTail(query, 2, tails), 1u);
  EXPECT_EQ(ChooseTail(query, 1, tails), std::nullopt);
}

TEST_F(QueryTest, IgnoresTailsThatCannotBe) {
  const kvtier_query raw = Raw(true);
  const Query query = Checked(raw);
  v1::TailChild short_key = Tail(2, 5);
  short_key.set_key("short");
  EXPECT_EQ(ChooseTail(query, 2,
                       std::vector<v1::TailChild>{short_key, ForeignTail(0), ForeignTail(4'000'000'000u)}),
            std::nullopt);
}

}  // namespace
}  // namespace kvtier::client
