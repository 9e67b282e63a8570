#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

EngineHarness::Options OneTier(bool unmap_at_once = true) {
  return {.tiers = {HostTier("hot", 256 * kKiB, CodecId::kRaw16)},
          .limits = {.lease_share = 1.0},
          .unmap_at_once = unmap_at_once};
}
EngineHarness::Options TwoTiers() {
  return {
      .tiers = {HostTier("hot", 128 * kKiB, CodecId::kRaw16), HostTier("warm", 128 * kKiB, CodecId::kKv4p)},
      .limits = {.lease_share = 1.0}};
}

uint64_t ArenaBytesOf(EngineHarness& harness, TierId tier) {
  uint64_t bytes = 0;
  for (const auto& [id, arena] : harness.fake().arenas()) {
    if (arena.tier == tier) bytes += ArenaBytes(arena.slots, arena.slot_bytes);
  }
  return bytes;
}

TEST(SpaceTest, S29_NoPutFailsWhileThereIsSomethingToEvict) {
  LadderFixture ladder(OneTier());
  for (uint64_t i = 1; i < 400; ++i) ASSERT_EQ(ladder.PutCodes(i, 1), std::vector<Code>{Code::kOk}) << i;
  EXPECT_GT(ladder.harness.metrics().tier[0].evicted_capacity.Get(), 300u);
  EXPECT_LE(ArenaBytesOf(ladder.harness, TierId{0}), 256 * kKiB);
  ladder.harness.engine().CheckInvariants();
}

TEST(SpaceTest, NoBlockLeavesWhileArenasOfAnotherModelAreEmpty) {
  LadderFixture ladder(OneTier());
  for (uint64_t i = 1; i < 60; ++i) ladder.PutCodes(i, 1);
  ladder.harness.Call<uint64_t>(Remove{ladder.session, ladder.model, {}, {}}).value();
  EXPECT_GT(ArenaBytesOf(ladder.harness, TierId{0}), 240 * kKiB) << "all memory has the first model's class";
  const uint64_t evicted = ladder.harness.metrics().tier[0].evicted_capacity.Get();

  ModelSpec larger = TinyModel("larger");
  larger.layers = 3;
  const ModelId model = ladder.harness.Register(ladder.session, larger);
  for (uint64_t i = 1; i <= 8; ++i) {
    const PutReply reply = *ladder.harness.PutChain(ladder.session, model, larger, i, 1);
    ASSERT_EQ(reply.blocks[0].code, Code::kOk) << i;
  }
  EXPECT_EQ(ladder.harness.metrics().tier[0].evicted_capacity.Get(), evicted);
  ladder.harness.engine().CheckInvariants();
}

TEST(SpaceTest, S29_ABatchLargerThanTheTierIsStoredBlockByBlock) {
  LadderFixture ladder(TwoTiers());
  EXPECT_EQ(ladder.PutCodes(1, 200), std::vector<Code>(200, Code::kOk));
  ladder.harness.engine().CheckInvariants();
}

TEST(SpaceTest, APutThatFindsOnlyLeasedBlocksGoesOneTierDown) {
  EngineHarness::Options options = TwoTiers();
  options.tiers[0].high_watermark = options.tiers[0].low_watermark = 1.0;  // nothing leaves by itself
  LadderFixture ladder(std::move(options));
  uint64_t first = 1;
  while (ladder.TierNumbers()[0].used_bytes < 72 * kKiB) ladder.PutCodes(first++, 1);
  // Everything that can be in hot is leased there.
  uint64_t lease = 1;
  for (uint64_t i = 1; i < first; ++i) ladder.Acquire(lease++, i, 1).value();
  std::vector<PutOutcome> outcomes;
  for (uint64_t i = 0; i < 12; ++i) {
    const PutReply reply = *ladder.harness.PutChain(ladder.session, ladder.model, ladder.spec, 100 + i, 1);
    outcomes.push_back(reply.blocks[0]);
    if (reply.blocks[0].code == Code::kOk) ladder.Acquire(lease++, 100 + i, 1).value();
  }
  EXPECT_EQ(outcomes.back().code, Code::kOk);
  EXPECT_EQ(outcomes.back().tier, TierId{1});
  EXPECT_EQ(outcomes.back().precision, Precision::kInt4);
}

TEST(SpaceTest, S32_TheTailOfAChainGoesBeforeItsHead) {
  LadderFixture ladder(OneTier());
  ladder.PutCodes(1, 16);
  uint64_t next = 100;
  while (ladder.harness.metrics().tier[0].evicted_capacity.Get() < 8) ladder.PutCodes(next++, 1);
  EXPECT_EQ(ladder.Hits(1, 16), 8u);  // what is left is a head without gaps
  EXPECT_EQ(ladder.harness.metrics().stranded_blocks.Get(), 0u);
}

TEST(SpaceTest, APutThatFitsNowhereSaysSo) {
  LadderFixture ladder(OneTier());
  uint64_t stored = 0, next = 1;
  // Lease all there is.
  for (; next < 60; ++next) {
    const Code code = ladder.PutCodes(next, 1)[0];
    if (code != Code::kOk) break;
    ladder.Acquire(next, next, 1).value();
    ++stored;
  }
  EXPECT_EQ(ladder.PutCodes(next, 1), std::vector<Code>{Code::kResourceExhausted});
  EXPECT_EQ(ladder.harness.metrics().puts_dropped.Get(), 2u);
  for (uint64_t i = 1; i <= stored; ++i) EXPECT_EQ(ladder.Hits(i, 1), 1u);
}

TEST(SpaceTest, S13_UsedAndFreeStayTheCapacityThroughEverything) {
  LadderFixture ladder(TwoTiers());
  uint32_t jobs = 0;
  ladder.harness.fake().job_fault = [&jobs](const Job&) -> std::optional<Status> {
    if (++jobs % 5 != 0) return std::nullopt;
    return Status(Code::kResourceExhausted, "injected");
  };
  for (uint64_t i = 1; i < 60; ++i) {
    ladder.PutCodes(i, 3);
    if (i % 4 == 0) ladder.Acquire(i, i, 2).status().ok();
    if (i % 5 == 0) ladder.harness.ReleaseLease(ladder.session, i - 1).status().ok();
    if (i % 7 == 0)
      ladder.harness.Call<uint64_t>(Remove{ladder.session, ladder.model, {MakeKey(i)}, {}}).value();
    if (i % 9 == 0) ladder.harness.Advance(std::chrono::seconds(2));
    ladder.harness.engine().CheckInvariants();
  }
  ladder.harness.Advance(std::chrono::seconds(120));
  ladder.harness.Call<uint64_t>(Remove{ladder.session, ladder.model, {}, {}}).value();
  for (const TierStats& tier : ladder.TierNumbers()) EXPECT_EQ(tier.used_bytes, 0u);
}

TEST(SpaceTest, S15_TheSourceOfAMoveStaysUntilTheTargetIsThere) {
  LadderFixture ladder(TwoTiers());
  ladder.PutCodes(1, 4);
  bool answered = false;
  ladder.harness.Send(AdminDemote{TierId{0}, 4, [&answered](const Result<uint64_t>&) { answered = true; }});
  for (int i = 0; i < 5; ++i) {
    ladder.harness.StepOnly();
    ladder.harness.HoldJobs();
    // Eviction pressure meanwhile.
    Put put;
    put.session = ladder.session;
    put.model = ladder.model;
    put.ticket = TicketId{100u + static_cast<uint64_t>(i)};
    for (uint64_t b = 0; b < 4; ++b)
      put.blocks.push_back(ladder.harness.ChainBlock(ladder.spec, 50 + i * 4 + b));
    ladder.harness.Send(std::move(put));
  }
  // The fake ladder checks, when it runs the moves at last, that every source is still there.
  ladder.harness.Settle();
  EXPECT_TRUE(answered);
  for (uint64_t i = 1; i <= 4; ++i) {
    const AcquireReply reply = *ladder.Acquire(i, i, 1);
    ASSERT_EQ(reply.run.size(), 1u);
    EXPECT_EQ(ladder.OwnerAt(reply.run[0].place), i);
  }
}

TEST(SpaceTest, BackgroundDemotionRunsBetweenTheWatermarks) {
  EngineHarness::Options options = TwoTiers();
  options.tiers[0].high_watermark = 0.8;
  options.tiers[0].low_watermark = 0.5;
  LadderFixture ladder(std::move(options));
  uint64_t next = 1;
  while (ladder.harness.metrics().moves[0][1].blocks.Get() == 0 && next < 40) ladder.PutCodes(next++, 1);
  const double share = static_cast<double>(ladder.TierNumbers()[0].used_bytes) / (128.0 * kKiB);
  EXPECT_LE(share, 0.55);  // down to the low one, not just below the high one
  EXPECT_EQ(ladder.harness.metrics().tier[0].evicted_capacity.Get(), 0u);
  EXPECT_EQ(ladder.Hits(1, next - 1), next - 1);
}

TEST(SpaceTest, MemoryPassesFromOneClassToAnotherByWholeArenas) {
  LadderFixture ladder(OneTier());
  for (uint64_t i = 1; i < 60; ++i) ladder.PutCodes(i, 1);
  ModelSpec wide = TinyModel("wide");
  wide.kv_heads = 3;
  const ModelId other = ladder.harness.Register(ladder.session, wide);
  for (uint64_t i = 1000; i < 1040; ++i) {
    const PutReply reply = *ladder.harness.PutChain(ladder.session, other, wide, i, 1);
    ASSERT_EQ(reply.blocks[0].code, Code::kOk) << i;
  }
  EXPECT_GT(ladder.harness.retired, 0u);
  EXPECT_LE(ArenaBytesOf(ladder.harness, TierId{0}), 256 * kKiB);
  ladder.harness.engine().CheckInvariants();
}

TEST(SpaceTest, S70_AnArenaBelongsToOneTenantForLife) {
  LadderFixture ladder(OneTier());
  const SessionId other = ladder.harness.Open(2, "uid:2000");
  const ModelId others = ladder.harness.Register(other, ladder.spec);
  std::map<uint32_t, TenantId> owner;
  for (uint64_t i = 1; i < 200; ++i) {
    const bool mine = i / 40 % 2 == 0;  // turns of forty: memory must pass from one to the other
    const PutReply reply = *ladder.harness.PutChain(mine ? ladder.session : other,
                                                    mine ? ladder.model : others, ladder.spec, i, 1);
    ASSERT_EQ(reply.blocks[0].code, Code::kOk) << i;
    for (const auto& [id, arena] : ladder.harness.published) {
      const auto [at, fresh] = owner.emplace(id, arena.tenant);
      ASSERT_EQ(at->second, arena.tenant);
    }
    for (const SessionId session : {ladder.session, other}) {
      for (const uint32_t arena : ladder.harness.mapped(session)) {
        ASSERT_EQ(owner.at(arena), ladder.harness.tenant(session));
      }
    }
  }
  EXPECT_GT(ladder.harness.retired, 0u);
}

TEST(SpaceTest, ARetiredArenaStaysAccountedUntilEverySessionUnmappedIt) {
  LadderFixture ladder(OneTier(/*unmap_at_once=*/false));
  for (uint64_t i = 1; i < 60; ++i) ladder.PutCodes(i, 1);
  const SessionId other = ladder.harness.Open(2, "uid:2000");
  const ModelId others = ladder.harness.Register(other, ladder.spec);
  // The first tenant's session does not unmap: nothing can be had, and nothing waits for ever.
  const PutReply reply = *ladder.harness.PutChain(other, others, ladder.spec, 1, 1);
  EXPECT_NE(reply.blocks[0].code, Code::kOk);
  EXPECT_GT(ladder.harness.retired, 0u);
  EXPECT_LE(ArenaBytesOf(ladder.harness, TierId{0}), 256 * kKiB);
  // Its end is as good as an answer.
  ladder.harness.Forget(ladder.session);
  ASSERT_TRUE(ladder.harness.Call<Done>(CloseSession{ladder.session, {}}).ok());
  EXPECT_EQ(ladder.harness.PutChain(other, others, ladder.spec, 1, 1)->blocks[0].code, Code::kOk);
  ladder.harness.engine().CheckInvariants();
}

TEST(SpaceTest, ASessionIsToldOfItsTenantsArenasWhenItOpens) {
  LadderFixture ladder(OneTier());
  ladder.PutCodes(1, 8);
  const SessionId same = ladder.harness.Open(2);
  const SessionId other = ladder.harness.Open(3, "uid:2000");
  EXPECT_EQ(ladder.harness.mapped(same), ladder.harness.mapped(ladder.session));
  EXPECT_TRUE(ladder.harness.mapped(other).empty());
}

TEST(SpaceTest, WithoutMemoryFromTheSystemPutsEndAndLaterWork) {
  LadderFixture ladder(OneTier());
  ladder.harness.fake().job_fault = [](const Job& job) -> std::optional<Status> {
    if (!std::holds_alternative<CreateArenaJob>(job.work)) return std::nullopt;
    return Status(Code::kResourceExhausted, "no memory");
  };
  EXPECT_EQ(ladder.PutCodes(1, 1), std::vector<Code>{Code::kResourceExhausted});
  ladder.harness.fake().job_fault = nullptr;
  ladder.harness.Advance(std::chrono::seconds(2));
  EXPECT_EQ(ladder.PutCodes(1, 1), std::vector<Code>{Code::kOk});
}

TEST(SpaceTest, AnImageLargerThanThoughtGetsALargerSlot) {
  LadderFixture ladder(TwoTiers());
  ladder.harness.fake().has_raw_layer = [](uint64_t owner) { return owner == 2; };
  ladder.PutCodes(1, 3);
  EXPECT_EQ(*ladder.harness.Call<uint64_t>(AdminDemote{TierId{0}, 3, {}}), 3u);
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(ladder.OwnerAt(ladder.Acquire(i, i, 1)->run[0].place), i);
  ladder.harness.engine().CheckInvariants();
}

}  // namespace
}  // namespace kvtier
