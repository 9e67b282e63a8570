// kvtierd over a file system that fails in every way that a device can. The rest of the daemon goes on,
// clients see codes, and when the device is well again so is the tier.
#include <random>

#include "tests/faults/daemon_fixture.h"

namespace kvtier::e2e {
namespace {

using Clock = std::chrono::steady_clock;

class FuseFaults : public FaultyDaemonTest {
 protected:
  void ExpectRecovery(uint32_t first, uint32_t count) {
    // A tier that was left alone is tried by what comes along.
    uint32_t fresh = 900'000;
    EXPECT_TRUE(Eventually(15, [&] {
      Fetch(first, kFastMs);
      Put(fresh++, KVTIER_DURABLE, kFastMs);
      return Reads() && Writes();
    }));
    LeaveHost();
    EXPECT_EQ(CountFetched(first, count), count) << "what was durable is there";
  }
};

TEST_F(FuseFaults, S54_AHungDeviceIsAMissInTimeAndTheOtherTiersServe) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 8);
  mount_->Fault("all hang path=segments");
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const auto start = Clock::now();
    EXPECT_FALSE(Fetch(seed, kFastMs));
    EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(5 * kFastMs));
  }
  EXPECT_GT(mount_->Waiting(), 0u);
  // Puts push older blocks down, into the device that hangs.
  for (uint32_t seed = 100; seed < 300; ++seed) Put(seed, KVTIER_MEMORY, 5 * kFastMs);
  EXPECT_TRUE(Eventually(10, [&] { return !Reads() && !Writes(); }));
  ExpectHostServes(1000);
  const auto start = Clock::now();
  for (uint32_t seed = 1; seed <= 8; ++seed) EXPECT_FALSE(Fetch(seed, 5 * kFastMs));
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(5 * kFastMs)) << "a miss at once, each";
  EXPECT_NE(Put(5000, KVTIER_DURABLE, 5 * kFastMs), KVTIER_OK) << "nothing can be durable now";
  // What watches over the process sees its threads stall, and no reason to end it.
  EXPECT_TRUE(Eventually(20, [&] { return Sample("kvtier_unhealthy_threads") == 1; }));
  EXPECT_TRUE(daemon_->Get("/healthz").ok());
  EXPECT_TRUE(daemon_->Get("/readyz").ok());
  mount_->Heal();
  ExpectRecovery(1, 8);
}

TEST_F(FuseFaults, S54_AHungSyncShedsWritesWhileReadsGoOn) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 8);
  mount_->Fault("sync hang path=segments");
  EXPECT_EQ(Put(50, KVTIER_DURABLE, kFastMs), KVTIER_DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually(10, [&] { return !Writes(); }));
  EXPECT_TRUE(Reads());
  EXPECT_EQ(CountFetched(1, 8), 8u);
  ExpectHostServes(1000);
  mount_->Heal();
  ExpectRecovery(1, 8);
}

TEST_F(FuseFaults, S49_ErrorsOfReadsAreMissesAndEndByThemselves) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 16);
  mount_->Fault("read EIO path=segments");
  EXPECT_EQ(CountFetched(1, 16), 0u);
  EXPECT_FALSE(Reads());
  EXPECT_TRUE(Writes());
  EXPECT_GT(ColdSample("kvtier_tier_io_errors_total", ",operation=\"read\""), 0);
  ExpectHostServes(1000);
  mount_->Heal();
  ExpectRecovery(1, 16);
}

TEST_F(FuseFaults, S49_ErrorsOfWritesAndSyncsAreCodesAndEndByThemselves) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 8);
  uint32_t fresh = 2000;  // what gave up in time may be stored later: then nothing is left to write
  for (const char* fault : {"write EIO path=segments", "sync EIO path=segments", "write short path=segments",
                            "write EROFS", "write EIO path=index"}) {
    SCOPED_TRACE(fault);
    const uint64_t rule = mount_->Fault(fault);
    EXPECT_TRUE(Eventually(10, [&] {
      const kvtier_code code = Put(fresh++, KVTIER_DURABLE, 10 * kFastMs);
      return code != KVTIER_OK && mount_->Hits(rule) > 0;
    }));
    EXPECT_TRUE(Eventually(5, [&] { return !Writes(); }));
    mount_->Heal();
    EXPECT_TRUE(Eventually(10, [&] { return Put(fresh++, KVTIER_DURABLE) == KVTIER_OK; }));
  }
  ExpectRecovery(1, 8);
}

TEST_F(FuseFaults, WatchersAreToldThatATierFailsAndThatItIsWellAgain) {
  StartOverFaults();
  if (!engine_) return;
  const auto is_told = [this](const std::string& event) {
    return Eventually(20,
                      [&] { return Ctl(*daemon_, "--json events").output.find(event) != std::string::npos; });
  };
  uint32_t fresh = 1;
  mount_->Fault("write EIO path=segments");
  EXPECT_TRUE(Eventually(10, [&] {
    Put(fresh++, KVTIER_DURABLE, kFastMs);
    return !Writes();
  }));
  EXPECT_TRUE(is_told("\"event\":\"tier\",\"kind\":\"sheds_writes\",\"tier\":\"cold\""));
  EXPECT_TRUE(is_told("\"event\":\"damage\",\"tier\":\"cold\""));
  mount_->Heal();
  EXPECT_TRUE(Eventually(10, [&] { return Put(fresh++, KVTIER_DURABLE) == KVTIER_OK; }));
  EXPECT_TRUE(is_told("\"event\":\"tier\",\"kind\":\"takes_writes\",\"tier\":\"cold\""));
}

TEST_F(FuseFaults, S43_BitsFlippedOnTheWayAreMissesAndNeverWrongBytes) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 64);
  const uint64_t rule = mount_->Fault("read flip path=segments percent=75 seed=11");
  const size_t fetched = CountFetched(1, 64);
  const auto flips = static_cast<size_t>(mount_->Hits(rule));
  EXPECT_GE(flips, 32u);
  // A flip in the padding behind an image hurts nobody.
  EXPECT_GE(fetched, 64 - flips);
  EXPECT_LT(fetched, 64u);
  EXPECT_EQ(ColdSample("kvtier_tier_checksum_failures_total"), static_cast<double>(64 - fetched));
  EXPECT_TRUE(Reads()) << "a device that answers is no broken device";
}

TEST_F(FuseFaults, S50_ODirectRefusedAtWriteAndNoFallocateAreFoundAtTheStart) {
  StartOverFaults({"write EINVAL direct", "allocate EOPNOTSUPP path=.seg", "allocate EOPNOTSUPP path=PROBE"});
  if (!engine_) return;
  EXPECT_EQ(Sample("kvtier_o_direct_active"), 0);
  EXPECT_EQ(Sample("kvtier_fallocate_active"), 0);
  mount_->Heal();
  PutCold(1, 8);
  EXPECT_EQ(CountFetched(1, 8), 8u);
  Restart();
  EXPECT_EQ(Sample("kvtier_o_direct_active"), 1) << "the next start finds what is there then";
  EXPECT_EQ(Sample("kvtier_fallocate_active"), 1);
  EXPECT_EQ(CountFetched(1, 8), 8u);
}

TEST_F(FuseFaults, ADeviceThatVanishesAndComesBackIsUsedAgain) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 16);
  mount_->Fault("all ENODEV");
  EXPECT_EQ(CountFetched(1, 16), 0u);
  ExpectHostServes(1000);
  EXPECT_NE(Put(5000, KVTIER_DURABLE, 5 * kFastMs), KVTIER_OK);
  mount_->Heal();
  ExpectRecovery(1, 16);
}

TEST_F(FuseFaults, AFileSystemThatIsMountedAnewIsUsedAgain) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 16);
  const std::string path = mount_->path();
  mount_.reset();  // every open file is dead from here on
  EXPECT_EQ(CountFetched(1, 16), 0u);
  ExpectHostServes(1000);
  auto mount = FaultMount::Make(folder_.File("backing"), path);
  ASSERT_TRUE(mount.ok()) << mount.status().ToString();
  mount_ = std::move(mount).value();
  ExpectRecovery(1, 16);
}

TEST_F(FuseFaults, S45_WhatWasAcknowledgedAsDurableOutlivesAPowerFailure) {
  StartOverFaults();
  if (!engine_) return;
  mount_->Command("volatile");
  std::vector<uint32_t> durable;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    if (Put(seed, KVTIER_DURABLE) == KVTIER_OK) durable.push_back(seed);
    if (seed % 3 == 0) Put(1000 + seed);
  }
  EXPECT_EQ(durable.size(), 60u);
  daemon_->Kill();
  mount_->Command("powerloss");
  ASSERT_TRUE(daemon_->Start().ok());
  engine_.emplace(Connect());
  for (const uint32_t seed : durable) EXPECT_TRUE(Fetch(seed)) << seed;
}

TEST_F(FuseFaults, ASyncThatFailedLosesNothingThatIsAcknowledged) {
  // Buffered: a sync that fails drops what was written, once, and the next one succeeds.
  StartOverFaults({"write EINVAL direct"});
  if (!engine_) return;
  mount_->Heal();
  mount_->Command("volatile");
  mount_->Fault("sync EIO path=segments percent=25 seed=5");
  std::vector<uint32_t> durable;
  // Each failure makes the tier refuse for a while.
  uint32_t seed = 0;
  EXPECT_TRUE(Eventually(60, [&] {
    if (Put(++seed, KVTIER_DURABLE, 10 * kFastMs) == KVTIER_OK) durable.push_back(seed);
    return durable.size() == 12;
  }));
  daemon_->Kill();
  mount_->Heal();
  mount_->Command("powerloss");
  ASSERT_TRUE(daemon_->Start().ok());
  engine_.emplace(Connect());
  for (const uint32_t seed : durable) EXPECT_TRUE(Fetch(seed)) << seed;
}

TEST_F(FuseFaults, AnIndexDamagedUnderTheDaemonIsBegunAnewAndLosesNothing) {
  StartOverFaults();
  if (!engine_) return;
  PutCold(1, 40);
  mount_->Fault("read flip path=index");
  mount_->Fault("write EIO path=index count=3");
  uint32_t fresh = 1000;
  for (int i = 0; i < 20; ++i) Put(fresh++, KVTIER_DURABLE, 10 * kFastMs);
  mount_->Heal();
  ExpectRecovery(1, 40);
  Restart();
  EXPECT_EQ(CountFetched(1, 40), 40u);
}

}  // namespace
}  // namespace kvtier::e2e
