#include <algorithm>

#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

EngineHarness::Options TwoTiers() {
  return {.tiers = {HostTier("hot", kMiB, CodecId::kRaw16), HostTier("warm", kMiB, CodecId::kKv4p)}};
}

class TailTest : public testing::Test, protected LadderFixture {
 protected:
  TailTest() : LadderFixture(TwoTiers()) { PutCodes(1, 3); }
  ~TailTest() override { harness.engine().CheckInvariants(); }

  static Key TailKeyOf(uint64_t tokens, uint64_t variant = 0) {
    return MakeKey(1'000'000 + tokens * 1000 + variant);
  }
  /// A tail of block 3.
  PutBlock Tail(uint16_t tokens, uint64_t variant = 0) const {
    PutBlock tail = harness.ChainBlock(spec, 4);
    tail.key = TailKeyOf(tokens, variant);
    tail.tokens = tokens;
    tail.source = OwnedSource(spec, tokens, 1000u + tokens);
    return tail;
  }
  Code PutOne(PutBlock block) {
    Put put;
    put.session = session;
    put.model = model;
    put.ticket = TicketId{harness.next_ticket++};
    put.blocks.push_back(std::move(block));
    return harness.Call<PutReply>(std::move(put))->blocks[0].code;
  }
  std::vector<uint16_t> TailLengths(std::vector<Key> keys) {
    std::vector<uint16_t> lengths;
    const Result<LookupReply> reply = harness.LookupKeys(session, model, std::move(keys));
    for (const TailChild& tail : reply->tails) {
      lengths.push_back(tail.tokens);
    }
    std::sort(lengths.begin(), lengths.end());
    return lengths;
  }
};

TEST_F(TailTest, S69_AReturningConversationFindsItsFullBlocksAndItsTail) {
  ASSERT_EQ(PutOne(Tail(10)), Code::kOk);
  // The history grew: block 4 is new, its key unknown; the tail of block 3 covers what was there.
  EXPECT_EQ(TailLengths(harness.ChainKeysOf(1, 4)), std::vector<uint16_t>{10});
  kvtier::Acquire acquire;
  acquire.session = session;
  acquire.model = model;
  acquire.lease = LeaseId{1};
  acquire.keys = harness.ChainKeysOf(1, 4);
  acquire.want_tails = true;
  const AcquireReply reply = *harness.Call<AcquireReply>(std::move(acquire));
  EXPECT_EQ(reply.run.size(), 3u);
  ASSERT_EQ(reply.tails.size(), 1u);
  EXPECT_EQ(reply.tails[0].key, TailKeyOf(10));
  EXPECT_EQ(reply.tails[0].precision, Precision::kBits16);
  EXPECT_EQ(OwnerAt(reply.tails[0].place), 1010u);
}

TEST_F(TailTest, S69_ADivergingConversationFindsOnlyTheFullBlocksBeforeIt) {
  ASSERT_EQ(PutOne(Tail(10)), Code::kOk);
  std::vector<Key> keys = harness.ChainKeysOf(1, 2);
  keys.push_back(MakeKey(424242));
  EXPECT_TRUE(TailLengths(keys).empty());  // the tail hangs on block 3, which is not on this way
  EXPECT_EQ(harness.LookupKeys(session, model, keys)->run.size(), 2u);
}

TEST_F(TailTest, S69_AStaleTailIsGoneOnceItsBlockHasSealed) {
  ASSERT_EQ(PutOne(Tail(10)), Code::kOk);
  PutBlock sealed = harness.ChainBlock(spec, 4);
  sealed.supersedes = {TailKeyOf(10), TailKeyOf(20)};
  ASSERT_EQ(PutOne(std::move(sealed)), Code::kOk);
  EXPECT_TRUE(TailLengths(harness.ChainKeysOf(1, 3)).empty());
  EXPECT_EQ(harness.LookupKeys(session, model, {TailKeyOf(10)})->run.size(), 0u);
  EXPECT_EQ(harness.metrics().tier[0].evicted_superseded.Get(), 1u);
}

TEST_F(TailTest, ALongerTailReplacesTheShorterOne) {
  ASSERT_EQ(PutOne(Tail(10)), Code::kOk);
  PutBlock longer = Tail(20);
  longer.supersedes = {TailKeyOf(10)};
  ASSERT_EQ(PutOne(std::move(longer)), Code::kOk);
  EXPECT_EQ(TailLengths(harness.ChainKeysOf(1, 3)), std::vector<uint16_t>{20});
}

TEST_F(TailTest, AParentKeepsItsFourNewestTails) {
  for (uint16_t tokens = 10; tokens < 16; ++tokens) ASSERT_EQ(PutOne(Tail(tokens)), Code::kOk);
  EXPECT_EQ(TailLengths(harness.ChainKeysOf(1, 3)), (std::vector<uint16_t>{12, 13, 14, 15}));
}

TEST_F(TailTest, OnlyTailsAreSuperseded) {
  PutBlock sealed = harness.ChainBlock(spec, 4);
  sealed.supersedes = {MakeKey(1), MakeKey(2)};
  ASSERT_EQ(PutOne(std::move(sealed)), Code::kOk);
  EXPECT_EQ(Hits(1, 4), 4u);
}

TEST_F(TailTest, ATailStaysAsGivenOnEveryTier) {
  ASSERT_EQ(PutOne(Tail(10)), Code::kOk);
  EXPECT_EQ(*harness.Call<uint64_t>(AdminDemote{TierId{0}, 10, {}}), 4u);
  const auto tails = harness.AcquireKeys(session, model, 1, {TailKeyOf(10)});
  ASSERT_EQ(tails->run.size(), 1u);
  EXPECT_EQ(tails->run[0].served_from, TierId{1});
  EXPECT_EQ(tails->run[0].precision, Precision::kBits16);
  EXPECT_EQ(harness.AcquireKeys(session, model, 2, {MakeKey(1)})->run[0].precision, Precision::kInt4);
}

TEST_F(TailTest, TailsOfASequenceShorterThanABlockHangOnTheRoot) {
  PutBlock tail = Tail(10);
  tail.first_position = 0;
  tail.parent = MakeKey(0);
  ASSERT_EQ(PutOne(std::move(tail)), Code::kOk);
  Lookup lookup;
  lookup.session = session;
  lookup.model = model;
  lookup.parent = MakeKey(0);
  const LookupReply reply = *harness.Call<LookupReply>(std::move(lookup));
  ASSERT_EQ(reply.tails.size(), 1u);
  EXPECT_EQ(reply.tails[0].tokens, 10);
}

}  // namespace
}  // namespace kvtier
