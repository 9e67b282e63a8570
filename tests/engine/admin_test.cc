#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

class AdminTest : public testing::Test, protected LadderFixture {
 protected:
  AdminTest()
      : LadderFixture(
            {.tiers = {HostTier("hot", kMiB, CodecId::kRaw16), HostTier("warm", kMiB, CodecId::kKv4p)}}) {}
  ~AdminTest() override { harness.engine().CheckInvariants(); }
};

TEST_F(AdminTest, DemoteMovesTheLeastRecentlyUsed) {
  PutCodes(1, 6);
  Acquire(1, 1, 2).value();
  harness.ReleaseLease(session, 1).value();
  EXPECT_EQ(*harness.Call<uint64_t>(AdminDemote{TierId{0}, 2, {}}), 2u);
  EXPECT_EQ(TierNumbers()[0].blocks[static_cast<size_t>(Precision::kBits16)], 4u);
  EXPECT_EQ(TierNumbers()[1].blocks[static_cast<size_t>(Precision::kInt4)], 2u);
  EXPECT_EQ(harness.LookupKeys(session, model, {MakeKey(1)})->run[0].tier, TierId{0});
  // Of one chain the tail counts as used before its head.
  EXPECT_EQ(harness.LookupKeys(session, model, {MakeKey(6)})->run[0].tier, TierId{1});
  EXPECT_EQ(harness.LookupKeys(session, model, {MakeKey(3)})->run[0].tier, TierId{0});
}

TEST_F(AdminTest, DemoteFromTheLastTierMovesNothing) {
  PutCodes(1, 2);
  EXPECT_EQ(*harness.Call<uint64_t>(AdminDemote{TierId{1}, 2, {}}), 0u);
  EXPECT_EQ(harness.Call<uint64_t>(AdminDemote{TierId{7}, 2, {}}).status().code(), Code::kInvalidArgument);
}

TEST_F(AdminTest, EvictDropsBlocksAndCountsThem) {
  PutCodes(1, 6);
  EXPECT_EQ(*harness.Call<uint64_t>(AdminEvict{TierId{0}, 4, {}}), 4u);
  EXPECT_EQ(harness.metrics().tier[0].evicted_capacity.Get(), 4u);
  uint64_t found = 0;
  for (uint64_t i = 1; i <= 6; ++i) found += Hits(i, 1);
  EXPECT_EQ(found, 2u);
}

TEST_F(AdminTest, WhatLeavesATierIsCountedWithItsTimeThereAndWhy) {
  const auto residence = [this](int tier, Departure why) -> const AgeHistogram& {
    return harness.metrics().tier[tier].residence[static_cast<size_t>(why)];
  };
  PutCodes(1, 5);
  harness.Advance(std::chrono::seconds(30));
  EXPECT_EQ(*harness.Call<uint64_t>(AdminDemote{TierId{0}, 2, {}}), 2u);
  harness.Advance(std::chrono::seconds(5));
  EXPECT_EQ(*harness.Call<uint64_t>(AdminEvict{TierId{1}, 1, {}}), 1u);
  EXPECT_EQ(*harness.Call<uint64_t>(AdminEvict{TierId{0}, 1, {}}), 1u);
  EXPECT_EQ(*harness.Call<uint64_t>(Remove{session, model, harness.ChainKeysOf(1, 1), {}}), 1u);
  EXPECT_EQ(residence(0, Departure::kDemoted).Bucket(2), 2u) << "at most a minute";
  EXPECT_NEAR(residence(0, Departure::kDemoted).SumTenths(), 2 * 300, 2);
  EXPECT_NEAR(residence(1, Departure::kEvicted).SumTenths(), 50, 1);
  EXPECT_NEAR(residence(0, Departure::kEvicted).SumTenths(), 350, 1);
  EXPECT_NEAR(residence(0, Departure::kRemoved).SumTenths(), 350, 1);
  uint64_t counted = 0;
  for (const TierMetrics& tier : harness.metrics().tier) {
    for (const AgeHistogram& ages : tier.residence) {
      for (int i = 0; i < AgeHistogram::kBuckets; ++i) counted += ages.Bucket(i);
    }
  }
  EXPECT_EQ(counted, 2u + 1 + 1 + 1);
}

TEST_F(AdminTest, WhatBlocksWouldTakeAtSixteenBitsFollowsThemThroughTheTiers) {
  const uint64_t block = RawBlockBytes(ShapeOf(spec, 0, static_cast<uint16_t>(spec.tokens_per_block)));
  const auto bytes = [this](int tier) { return harness.metrics().tier[tier].fp16_bytes.Get(); };
  PutCodes(1, 5);
  EXPECT_EQ(bytes(0), static_cast<int64_t>(5 * block));
  EXPECT_EQ(*harness.Call<uint64_t>(AdminDemote{TierId{0}, 2, {}}), 2u);
  EXPECT_EQ(bytes(0), static_cast<int64_t>(3 * block));
  EXPECT_EQ(bytes(1), static_cast<int64_t>(2 * block)) << "however it is encoded";
  EXPECT_EQ(*harness.Call<uint64_t>(Remove{session, model, {}, {}}), 5u);
  EXPECT_EQ(bytes(0) + bytes(1), 0);
}

TEST_F(AdminTest, ABlockIsListedWithWhatDecidesWhereItIs) {
  PutCodes(1, 3);
  harness.Advance(std::chrono::seconds(7));
  Acquire(1, 1, 1).value();
  const auto listed = harness.Call<std::vector<BlockStats>>(ListBlocks{model, {}, 10, {}});
  ASSERT_EQ(listed->size(), 3u);
  const auto block = [&](uint64_t number) {
    return *std::ranges::find(*listed, harness.ChainKeysOf(number, 1)[0], &BlockStats::key);
  };
  EXPECT_EQ(block(1).children, 1u);
  EXPECT_EQ(block(3).children, 0u);
  EXPECT_FALSE(block(1).is_tail);
  EXPECT_EQ(block(1).floor, Precision::kNone);
  EXPECT_EQ(block(1).uses_since, 0u);
  EXPECT_GT(block(3).uses_since, 0u);
  EXPECT_FALSE(block(1).recent_uses) << "no tier asks for frequencies";
  ASSERT_EQ(block(2).copies.size(), 1u);
  EXPECT_NEAR(block(2).copies[0].present_ms, 7'000, 100);
}

TEST(AdminColdTest, WhatAStartFindsIsAsOldAsTheStart) {
  LadderFixture ladder({.tiers = {HostTier("warm", 4 * kMiB, CodecId::kKv4p),
                                  ColdTier("cold", 16 * kMiB, kMiB, CodecId::kKv4p)}});
  ladder.PutCodes(1, 2, Durability::kDurable);
  ladder.harness.Advance(std::chrono::hours(3));
  ladder.harness.Restart();
  ladder.Begin();
  ladder.harness.Advance(std::chrono::seconds(20));
  ASSERT_EQ(*ladder.harness.Call<uint64_t>(AdminEvict{TierId{1}, 2, {}}), 2u);
  EXPECT_NEAR(
      ladder.harness.metrics().tier[1].residence[static_cast<size_t>(Departure::kEvicted)].SumTenths(), 400,
      4);
}

TEST_F(AdminTest, EvictLeavesLeasedBlocksAlone) {
  PutCodes(1, 3);
  Acquire(1, 1, 3).value();
  EXPECT_EQ(*harness.Call<uint64_t>(AdminEvict{TierId{0}, 10, {}}), 0u);
  EXPECT_EQ(Hits(1, 3), 3u);
}

TEST_F(AdminTest, BlocksAreListedInKeyOrderPageByPage) {
  PutCodes(1, 25);
  std::vector<Key> keys;
  Key after;
  while (true) {
    const auto page = harness.Call<std::vector<BlockStats>>(ListBlocks{model, after, 10, {}});
    ASSERT_TRUE(page.ok());
    if (page->empty()) break;
    for (const BlockStats& block : *page) keys.push_back(block.key);
    after = keys.back();
  }
  EXPECT_EQ(keys.size(), 25u);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
}

TEST_F(AdminTest, ModelsAreListedWithTheirBlocksAndBytes) {
  PutCodes(1, 3);
  const auto models = harness.Call<std::vector<ModelStats>>(ListModels{});
  ASSERT_EQ(models->size(), 1u);
  EXPECT_EQ(models->at(0).tenant, "uid:1000");
  EXPECT_EQ(models->at(0).blocks, 3u);
  EXPECT_GT(models->at(0).bytes, 3 * RawBlockBytes(ShapeOf(spec, 0, 64)));
}

TEST_F(AdminTest, ClearingANamespaceLeavesTheOthers) {
  PutCodes(1, 5);
  const ModelSpec other_spec = TinyModel("other");
  const ModelId other = harness.Register(session, other_spec);
  harness.PutChain(session, other, other_spec, 100, 2).value();
  EXPECT_EQ(*harness.Call<uint64_t>(Remove{session, model, {}, {}}), 5u);
  EXPECT_EQ(Hits(1, 5), 0u);
  EXPECT_EQ(harness.LookupKeys(session, other, harness.ChainKeysOf(100, 2))->run.size(), 2u);
  EXPECT_EQ(harness.metrics().tier[0].evicted_removed.Get(), 5u);
}

TEST_F(AdminTest, AKeyOfAnotherModelIsAMissAndCounted) {
  PutCodes(1, 1);
  const ModelId other = harness.Register(session, TinyModel("other"));
  EXPECT_EQ(harness.LookupKeys(session, other, {MakeKey(1)})->run.size(), 0u);
  EXPECT_EQ(harness.metrics().namespace_mismatches.Get(), 1u);
}

TEST_F(AdminTest, RegisteringAModelTwiceGivesTheSame) {
  EXPECT_EQ(harness.Register(session, spec), model);
  ModelSpec broken = spec;
  broken.layers = 0;
  EXPECT_EQ(harness.Call<RegisteredModel>(RegisterModel{session, broken, {}}).status().code(),
            Code::kInvalidArgument);
}

TEST_F(AdminTest, AClosedSessionIsUnknown) {
  harness.Call<Done>(CloseSession{session, {}}).value();
  EXPECT_EQ(harness.LookupKeys(session, model, {MakeKey(1)}).status().code(), Code::kStale);
  EXPECT_EQ(PutCodes(1, 1), std::vector<Code>{Code::kStale});
}

TEST(EngineOptionsTest, WhatCannotWorkIsRefusedByName) {
  BoundedQueue<Command> commands(8);
  BoundedQueue<Completion> completions(512);
  BoundedQueue<Job> jobs(512);
  EngineHarness events({.tiers = {HostTier("hot", kMiB, CodecId::kRaw16)}});
  Metrics metrics;
  const auto refused = [&](std::vector<TierOptions> tiers) {
    const auto made = Engine::Make({.tiers = std::move(tiers), .limits = {}},
                                   {.commands = commands,
                                    .completions = completions,
                                    .jobs = jobs,
                                    .events = events,
                                    .metrics = metrics},
                                   {});
    return made.ok() ? std::string("accepted") : made.status().message();
  };
  EXPECT_NE(refused({}).find("tiers"), std::string::npos);
  TierOptions hot = HostTier("hot", kMiB, CodecId::kRaw16);
  EXPECT_NE(refused({hot}).find("medium"), std::string::npos);
  hot.medium = FakeLadder().medium(TierId{0});
  EXPECT_EQ(refused({hot}), "accepted");
  TierOptions upside_down = hot;
  upside_down.low_watermark = 0.99;
  EXPECT_NE(refused({upside_down}).find("watermarks"), std::string::npos);
  TierOptions only_cold = ColdTier("cold", kMiB, 64 * kKiB, CodecId::kKv2p);
  only_cold.medium = hot.medium;
  EXPECT_NE(refused({only_cold}).find("host tier"), std::string::npos);
  TierOptions memory = only_cold;
  memory.kind = MediumKind::kCxl;
  memory.keep_tails = true;
  EXPECT_NE(refused({hot, memory}).find("tails"), std::string::npos);
}

}  // namespace
}  // namespace kvtier
