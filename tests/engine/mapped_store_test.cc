// A CXL tier of one tenant, whose sessions read blocks where they stand.
#include "tests/engine/ladder_fixture.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

constexpr TierId kHot{0}, kCxl{1};
constexpr uint64_t kSegment = 64 * kKiB;
const std::string kOwner = "uid:1000", kStranger = "uid:1001";

TierOptions OwnedCxl(uint64_t segments) {
  TierOptions tier = ColdTier("cxl", kCxlMetaBytes + segments * kSegment, kSegment, CodecId::kKv2p);
  tier.kind = MediumKind::kCxl;
  tier.tenant = kOwner;
  return tier;
}

EngineHarness::Options Tiers(uint64_t segments, double lease_share, bool nvme = false) {
  EngineHarness::Options options{.tiers = {HostTier("hot", 128 * kKiB, CodecId::kRaw16), OwnedCxl(segments)},
                                 .limits = {.lease_share = lease_share}};
  if (nvme) options.tiers.push_back(ColdTier("cold", 4 * kMiB, kSegment, CodecId::kKv2p));
  return options;
}

class MappedStore : public testing::Test {
 protected:
  void Begin(const EngineHarness::Options& options) { ladder_.emplace(options); }
  /// Blocks 1 to `count` on the CXL tier alone.
  void Fill(uint64_t count) {
    for (uint64_t number = 1; number <= count; ++number) ladder_->PutCodes(number, 1);
    harness().Settle();
    harness().Call<uint64_t>(AdminDemote{kHot, count, {}}, std::chrono::seconds(20)).value();
  }
  EngineHarness& harness() { return ladder_->harness; }
  AcquireReply Read(uint64_t lease, uint64_t first, uint64_t count) {
    return ladder_->Acquire(lease, first, count).value();
  }
  static bool InPlace(const AcquiredBlock& block) {
    return block.place.container == StoreArenaId(kCxl).value;
  }
  uint64_t Promotions() { return harness().metrics().moves[kCxl.value][kHot.value].blocks.Get(); }
  void TearDown() override { harness().engine().CheckInvariants(); }

  std::optional<LadderFixture> ladder_;
};

TEST_F(MappedStore, ASessionThatMappedItReadsBlocksWhereTheyStand) {
  Begin(Tiers(8, 1.0));
  Fill(4);
  harness().MapStore(ladder_->session, kCxl);
  const AcquireReply reply = Read(1, 1, 4);
  ASSERT_EQ(reply.run.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    const AcquiredBlock& block = reply.run[i];
    EXPECT_TRUE(InPlace(block));
    EXPECT_EQ(ladder_->OwnerAt(block.place), i + 1);
    EXPECT_EQ(block.served_from, kCxl);
    EXPECT_EQ(block.precision, Precision::kInt2);
    const uint64_t segment = CxlSegmentOffset(block.place.slot, kSegment);
    EXPECT_GE(block.place.offset, segment + kColdSegmentHeaderBytes + kColdRecordHeaderBytes);
    EXPECT_LE(block.place.offset + block.image_bytes, segment + kSegment);
  }
  EXPECT_EQ(Promotions(), 0u);
}

TEST_F(MappedStore, OtherSessionsReadThroughDram) {
  Begin(Tiers(8, 1.0));
  Fill(1);
  const AcquireReply before = Read(1, 1, 1);  // an older library, or one that has not mapped it yet
  ASSERT_EQ(before.run.size(), 1u);
  EXPECT_FALSE(InPlace(before.run[0]));
  EXPECT_EQ(Promotions(), 1u);
}

TEST_F(MappedStore, AStrangerWhoSaysThatItMappedTheStoreIsNotBelieved) {
  Begin(Tiers(8, 1.0, /*nvme=*/true));
  const SessionId stranger = harness().Open(2, kStranger);
  const ModelId model = harness().Register(stranger, ladder_->spec);
  harness().MapStore(stranger, kCxl);
  harness().PutChain(stranger, model, ladder_->spec, 1, 3).value();
  harness().Call<uint64_t>(AdminDemote{kHot, 3, {}}, std::chrono::seconds(20)).value();
  const auto reply = harness().AcquireKeys(stranger, model, 1, harness().ChainKeysOf(1, 3));
  ASSERT_EQ(reply->run.size(), 3u);
  for (const AcquiredBlock& block : reply->run) EXPECT_FALSE(InPlace(block));
}

TEST_F(MappedStore, BlocksAndModelsOfOthersNeverComeThere) {
  Begin(Tiers(8, 1.0, /*nvme=*/true));
  harness().Settle();
  uint64_t models = 0, models_there = 0;
  harness().fake().cold_fault = [&](const ColdJob& job) -> std::optional<Status> {
    if (const auto* put = std::get_if<PutModelJob>(&job.work)) {
      ++models;
      models_there += put->tier == kCxl;
    }
    return std::nullopt;
  };
  const SessionId stranger = harness().Open(2, kStranger);
  const ModelId model = harness().Register(stranger, ladder_->spec);
  ASSERT_TRUE(harness().PutChain(stranger, model, ladder_->spec, 1, 30, Durability::kDurable).ok());
  harness()
      .Call<PutReply>(WaitTicket{stranger, TicketId{harness().next_ticket - 1}, {}}, std::chrono::seconds(20))
      .value();
  harness().Call<uint64_t>(AdminDemote{kHot, 30, {}}, std::chrono::seconds(20)).value();
  const std::vector<TierStats> tiers = ladder_->TierNumbers();
  EXPECT_EQ(tiers[kCxl.value].used_bytes, 0u);
  EXPECT_GT(tiers[2].used_bytes, 0u);
  EXPECT_EQ(models, 1u);
  EXPECT_EQ(models_there, 0u);
  uint64_t on_cxl = 0;
  harness().at_restart = [&](std::vector<ColdRecovery>& recovery) {
    on_cxl = recovery[kCxl.value].blocks.size();
  };
  harness().Restart();
  EXPECT_EQ(on_cxl, 0u);
  const SessionId again = harness().Open(3, kStranger);
  const ModelId known = harness().Register(again, ladder_->spec);
  EXPECT_EQ(harness().LookupKeys(again, known, harness().ChainKeysOf(1, 30))->run.size(), 30u);
}

TEST_F(MappedStore, ADurablePutOfAStrangerIsRefusedWhereNoTierIsForIt) {
  Begin(Tiers(8, 1.0));
  const SessionId stranger = harness().Open(2, kStranger);
  const ModelId model = harness().Register(stranger, ladder_->spec);
  EXPECT_EQ(harness().PutChain(stranger, model, ladder_->spec, 1, 1, Durability::kDurable).status().code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(ladder_->PutCodes(1, 1, Durability::kDurable), std::vector<Code>{Code::kOk});
}

TEST_F(MappedStore, WhatIsReadInPlaceStaysThereWhateverComes) {
  Begin(Tiers(4, 0.5));
  Fill(20);
  harness().MapStore(ladder_->session, kCxl);
  const AcquireReply reply = Read(1000, 20, 1);
  ASSERT_TRUE(reply.run.size() == 1 && InPlace(reply.run[0]));
  for (uint64_t number = 21; number <= 300; ++number) ladder_->PutCodes(number, 1);
  harness().Settle();
  harness().engine().CheckInvariants();
  EXPECT_GT(harness().fake().recycles(), 8u) << "the tier came round several times";
  EXPECT_EQ(ladder_->OwnerAt(reply.run[0].place), 20u);
  ASSERT_TRUE(harness().ReleaseLease(ladder_->session, 1000).ok());
  for (uint64_t number = 301; number <= 600; ++number) ladder_->PutCodes(number, 1);
  harness().Settle();
  EXPECT_EQ(ladder_->OwnerAt(reply.run[0].place), 0u) << "the segment has another sequence now";
}

TEST_F(MappedStore, ARemovedBlockStaysUntilItsLeaseEnds) {
  Begin(Tiers(8, 1.0));
  Fill(1);
  harness().MapStore(ladder_->session, kCxl);
  const AcquireReply reply = Read(1, 1, 1);
  harness().Send(Remove{ladder_->session, ladder_->model, {MakeKey(1)}, {}});
  harness().Settle();
  EXPECT_EQ(ladder_->Hits(1, 1), 0u);
  EXPECT_EQ(ladder_->OwnerAt(reply.run[0].place), 1u);
  EXPECT_GT(ladder_->TierNumbers()[kCxl.value].used_bytes, 0u);
  ASSERT_TRUE(harness().ReleaseLease(ladder_->session, 1).ok());
  harness().Settle();
  EXPECT_EQ(ladder_->TierNumbers()[kCxl.value].used_bytes, 0u);
}

/// Blocks that a verification finds damaged, and how many verifications there were.
class DamagedBlocks : public MappedStore {
 protected:
  void Start(uint64_t blocks, uint64_t damaged) {
    Begin(Tiers(8, 1.0));
    Fill(blocks);
    harness().MapStore(ladder_->session, kCxl);
    ASSERT_EQ(Read(1, 1, blocks).run.size(), blocks);
    harness().fake().job_fault = [this, damaged](const Job& job) -> std::optional<Status> {
      const auto* verify = std::get_if<VerifyJob>(&job.work);
      if (verify == nullptr) return std::nullopt;
      ++verified_;
      if (verify->identity.key != MakeKey(damaged)) return std::nullopt;
      return Status(Code::kDataLoss, "a flipped bit");
    };
  }
  uint64_t Quarantined() { return harness().metrics().quarantined_blocks.Get(); }
  uint64_t verified_ = 0;
};

TEST_F(DamagedBlocks, S43_WhatAClientFoundDamagedIsOneMissAndQuarantined) {
  Start(4, 2);
  ASSERT_TRUE(harness().ReleaseLease(ladder_->session, 1, {MakeKey(2)}).ok());
  harness().Settle();
  EXPECT_EQ(verified_, 1u);
  EXPECT_EQ(Quarantined(), 1u);
  EXPECT_EQ(harness().metrics().tier[kCxl.value].checksum_failures.Get(), 1u);
  EXPECT_EQ(ladder_->Hits(1, 4), 1u);
  EXPECT_EQ(ladder_->Hits(3, 2), 2u);
}

TEST_F(DamagedBlocks, AClientIsNotBelievedAndAsksForItsLeasesBlocksAlone) {
  Start(4, 4);
  ASSERT_TRUE(harness().ReleaseLease(ladder_->session, 1, {MakeKey(2), MakeKey(77)}).ok());
  harness().Settle();
  EXPECT_EQ(verified_, 1u);
  ASSERT_EQ(Read(2, 1, 1).run.size(), 1u);
  ASSERT_TRUE(harness().ReleaseLease(ladder_->session, 2, {MakeKey(4)}).ok());
  harness().Settle();
  EXPECT_EQ(verified_, 1u);
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_EQ(ladder_->Hits(1, 4), 4u);
}

TEST_F(DamagedBlocks, TheDaemonReadsAFewAtOnceForThem) {
  constexpr uint64_t kBlocks = 40, kMost = 16;
  Start(kBlocks, kBlocks);
  std::vector<Key> all = harness().ChainKeysOf(1, kBlocks);
  ASSERT_TRUE(harness().ReleaseLease(ladder_->session, 1, all).ok());
  harness().Settle();
  EXPECT_EQ(verified_, kMost);
  Read(2, 1, kBlocks);
  ASSERT_TRUE(harness().ReleaseLease(ladder_->session, 2, all).ok());
  harness().Settle();
  EXPECT_EQ(verified_, 2 * kMost) << "the first ones no longer count";
}

TEST_F(DamagedBlocks, TheDaemonReadsNoMoreAtOnceForManyLeases) {
  constexpr uint64_t kBlocks = 40, kMost = 16;
  Start(kBlocks, kBlocks);
  const std::vector<Key> first = harness().ChainKeysOf(1, kMost), second = harness().ChainKeysOf(17, kMost);
  ASSERT_EQ(Read(2, 17, kMost).run.size(), kMost);
  harness().Send(Release{ladder_->session, LeaseId{1}, first, {}});
  harness().Send(Release{ladder_->session, LeaseId{2}, second, {}});
  harness().Settle();
  EXPECT_EQ(verified_, kMost);
}

TEST_F(MappedStore, TheLeaseShareCountsWhatIsReadInPlace) {
  Begin(Tiers(8, 0.01));
  Fill(12);
  harness().MapStore(ladder_->session, kCxl);
  const AcquireReply reply = Read(1, 1, 12);
  EXPECT_EQ(reply.stopped_by, Code::kResourceExhausted);
  const auto share = static_cast<uint64_t>(0.01 * static_cast<double>(harness().capacity(kCxl)));
  uint64_t bytes = 0;
  for (const AcquiredBlock& block : reply.run) bytes += block.place.bytes;
  EXPECT_GT(reply.run.size(), 1u);
  EXPECT_LE(bytes, share);
  EXPECT_EQ(Promotions(), 0u);
}

TEST_F(MappedStore, LeasesNeverKeepMoreThanTheirShareOfTheSegments) {
  Begin(Tiers(8, 0.25));
  Fill(60);
  harness().MapStore(ladder_->session, kCxl);
  std::set<uint32_t> segments;
  size_t through_dram = 0;
  for (uint64_t number = 60; number > 0; number -= 5) {
    const Result<AcquireReply> reply = ladder_->Acquire(number, number, 1);
    if (!reply.ok() || reply->run.empty()) continue;
    if (InPlace(reply->run[0])) {
      segments.insert(reply->run[0].place.slot);
    } else {
      ++through_dram;
    }
  }
  EXPECT_EQ(segments.size(), 2u);
  EXPECT_GT(through_dram, 0u);
}

TEST_F(MappedStore, APrefetchStillBringsBlocksUp) {
  Begin(Tiers(8, 1.0));
  Fill(1);
  harness().MapStore(ladder_->session, kCxl);
  harness()
      .Call<uint32_t>(Prefetch{ladder_->session, ladder_->model, TicketId{77}, kHot, {MakeKey(1)}, {}})
      .value();
  harness().Settle();
  EXPECT_EQ(Promotions(), 1u);
  const AcquireReply reply = Read(1, 1, 1);
  ASSERT_EQ(reply.run.size(), 1u);
  EXPECT_FALSE(InPlace(reply.run[0])) << "what DRAM has is read there";
}

TEST_F(MappedStore, AfterItsEndTheStoreIsReadThroughDramAgain) {
  Begin(Tiers(8, 1.0));
  Fill(2);
  harness().MapStore(ladder_->session, kCxl);
  EXPECT_TRUE(InPlace(Read(1, 1, 1).run[0]));
  harness().Send(ArenaUnmapped{ladder_->session, StoreArenaId(kCxl)});
  EXPECT_FALSE(InPlace(Read(2, 2, 1).run[0]));
}

TEST_F(MappedStore, AfterARestartSessionsHaveToMapItAnew) {
  Begin(Tiers(8, 1.0));
  Fill(2);
  harness().MapStore(ladder_->session, kCxl);
  harness().Restart();
  ladder_->Begin();
  EXPECT_FALSE(InPlace(Read(1, 1, 1).run[0]));
  harness().MapStore(ladder_->session, kCxl);
  EXPECT_TRUE(InPlace(Read(2, 2, 1).run[0]));
}

TEST_F(MappedStore, OnlyACxlTierIsOneTenants) {
  EngineHarness::Options options = Tiers(8, 1.0, /*nvme=*/true);
  options.tiers[2].tenant = kOwner;
  BoundedQueue<Command> commands(16);
  BoundedQueue<Completion> completions(1024);
  BoundedQueue<Job> jobs(1024), moves(1024);
  BoundedQueue<ColdJob> commits(1024);
  Begin(Tiers(8, 1.0));
  for (TierOptions& tier : options.tiers) tier.medium = harness().fake().medium(kHot);
  Metrics metrics;
  Engine::Deps deps{.commands = commands,
                    .completions = completions,
                    .jobs = jobs,
                    .devices = {},
                    .events = harness(),
                    .metrics = metrics};
  deps.devices.fill({.moves = &moves, .commits = &commits});
  const Status made = Engine::Make({.tiers = options.tiers, .limits = {}, .hash_seed = 0}, deps, {}).status();
  EXPECT_EQ(made.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier
