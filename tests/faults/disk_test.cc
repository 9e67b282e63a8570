// kvtierd on small real disks: full, filled by others, with large sectors, with damaged files.
#include <fstream>
#include <random>

#include "tests/faults/daemon_fixture.h"

namespace kvtier::e2e {
namespace {

namespace fs = std::filesystem;

class DiskFaults : public FaultyDaemonTest {
 protected:
  void Use(Result<std::unique_ptr<ScratchDisk>> disk, uint64_t cold_bytes) {
    if (!disk.ok()) GTEST_SKIP() << disk.status().ToString();
    disk_ = std::move(disk).value();
    used_before_ = disk_->UsedBytes();
    cap_ = cold_bytes;
    StartDaemon(Settings(disk_->path(), cold_bytes, "while_room"));
    if (!HasFatalFailure()) engine_.emplace(Connect());
  }
  void TearDown() override {
    FaultyDaemonTest::TearDown();
    disk_.reset();
  }
  /// Blocks through the host tiers into the cold one. Each put is acknowledged.
  void Pour(uint32_t first, uint32_t count) {
    for (uint32_t seed = first; seed < first + count; ++seed) {
      ASSERT_EQ(Put(seed), KVTIER_OK) << seed;
      if (seed % 16 == 0) ExpectBelowCap();
    }
  }
  void ExpectBelowCap() const { EXPECT_LE(disk_->UsedBytes() - used_before_ - filled_, cap_); }
  double ColdBytes() const { return ColdSample("kvtier_tier_used_bytes"); }
  /// Another process takes all but `left` bytes.
  void FillDisk(uint64_t left) {
    std::ofstream out(disk_->path() + "/filler", std::ios::binary);
    const std::vector<char> piece(64 << 10, 'x');
    while (disk_->FreeBytes() > left + piece.size()) {
      if (!out.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) break;
      filled_ += piece.size();
    }
  }
  void EmptyDisk() {
    fs::remove(disk_->path() + "/filler");
    filled_ = 0;
  }

  std::unique_ptr<ScratchDisk> disk_;
  uint64_t used_before_ = 0, cap_ = 0, filled_ = 0;
};

TEST_F(DiskFaults, S42_ADiskSmallerThanItsCapacityMakesTheTierSmallerUntilSpaceReturns) {
  Use(ScratchDisk::MakeTmpfs(14 * kMiB), 64 * kMiB);
  if (!engine_) return;
  Pour(1, 900);
  const double small = ColdBytes();
  EXPECT_GT(small, 4.0 * kMiB);
  EXPECT_LE(small, 14.0 * kMiB);
  EXPECT_TRUE(Writes()) << "a smaller tier, not a broken one";
  EXPECT_GT(ColdSample("kvtier_tier_evictions_total", ",reason=\"capacity\""), 0);
  EXPECT_EQ(Put(5000, KVTIER_DURABLE), KVTIER_OK);
  disk_->Resize(96 * kMiB);
  uint32_t next = 10'000;
  EXPECT_TRUE(Eventually(15, [&] {
    Pour(next, 50);
    next += 50;
    return ColdBytes() > 2 * small;
  }));
  Restart();
  EXPECT_TRUE(Fetch(5000) || ColdSample("kvtier_tier_used_bytes") > 0);
}

TEST_F(DiskFaults, S41_AnotherProcessFillsTheDiskTheTierShrinksAndNeverPassesItsCap) {
  Use(ScratchDisk::MakeLoop("ext4", 80 * kMiB, 512), 32 * kMiB);
  if (!engine_) return;
  Pour(1, 500);
  FillDisk(64 << 10);
  Pour(1000, 700);
  EXPECT_GT(ColdBytes(), 1.0 * kMiB);
  EXPECT_GT(CountFetched(1600, 100), 95u);
  EmptyDisk();
  uint32_t next = 10'000;
  const double small = ColdBytes();
  EXPECT_TRUE(Eventually(15, [&] {
    Pour(next, 100);
    next += 100;
    return Writes() && ColdBytes() > small + 2 * kMiB;
  }));
  Pour(50'000, 1200);
  ExpectBelowCap();
  Restart();
  ExpectBelowCap();
}

TEST_F(DiskFaults, S42_ADiskThatIsFullFromTheStartServesWithoutTheTier) {
  auto disk = ScratchDisk::MakeTmpfs(4 * kMiB);
  Use(std::move(disk), 64 * kMiB);
  if (!engine_) return;
  FillDisk(0);
  ExpectHostServes(1);
  EXPECT_NE(Put(5000, KVTIER_DURABLE, 10 * kFastMs), KVTIER_OK);
  disk_->Resize(96 * kMiB);
  uint32_t fresh = 6000;
  EXPECT_TRUE(Eventually(10, [&] { return Put(fresh++, KVTIER_DURABLE) == KVTIER_OK; }));
}

TEST_F(DiskFaults, S42_AStoreWhoseDiskIsFullAtAStartIsReadAndWrittenToAgainOnceThereIsRoom) {
  Use(ScratchDisk::MakeTmpfs(24 * kMiB), 16 * kMiB);
  if (!engine_) return;
  PutCold(1, 20);
  FillDisk(0);
  {
    std::ofstream last(disk_->path() + "/last", std::ios::binary);
    const std::vector<char> page(4096, 'x');
    while (last.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  Restart();
  EXPECT_NE(daemon_->Log().find("is full: what it holds can be read"), std::string::npos);
  EXPECT_EQ(CountFetched(1, 20), 20u);
  fs::remove(disk_->path() + "/last");
  EmptyDisk();
  uint32_t fresh = 6000;
  EXPECT_TRUE(Eventually(10, [&] { return Put(fresh++, KVTIER_DURABLE) == KVTIER_OK; }));
}

class SectorFaults : public DiskFaults, public testing::WithParamInterface<const char*> {};

TEST_P(SectorFaults, S50_SectorsOf4096BytesWorkWithODirect) {
  Use(ScratchDisk::MakeLoop(GetParam(), 320 * kMiB, 4096), 64 * kMiB);
  if (!engine_) return;
  EXPECT_EQ(Sample("kvtier_o_direct_active"), 1);
  PutCold(1, 64);
  EXPECT_EQ(CountFetched(1, 64), 64u);
  Restart();
  EXPECT_EQ(CountFetched(1, 64), 64u);
  Pour(1000, 300);
  ExpectBelowCap();
}
INSTANTIATE_TEST_SUITE_P(FileSystems, SectorFaults, testing::Values("ext4", "xfs"));

/// Bits of files flipped behind the daemon's back.
class Damage : public FaultyDaemonTest {
 protected:
  void StartOnFolder(const std::string& tails = "never") {
    fs::create_directory(folder_.File("store"));
    StartDaemon(Settings(folder_.File("store"), 64 * kMiB, tails));
    if (!HasFatalFailure()) engine_.emplace(Connect());
  }
  std::vector<std::string> FilesIn(const std::string& folder) const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_.File("store/" + folder))) {
      if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  static void FlipBit(const std::string& path, uint64_t bit) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(bit / 8));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(bit / 8));
    file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
    ASSERT_TRUE(file.good()) << path;
  }
  static void FlipSome(const std::vector<std::string>& files, int count, std::mt19937_64& random) {
    ASSERT_FALSE(files.empty());
    for (int i = 0; i < count; ++i) {
      const std::string& path = files[random() % files.size()];
      FlipBit(path, random() % (fs::file_size(path) * 8));
    }
  }
};

TEST_F(Damage, S44_FortyEightFlippedBitsInSegmentsGiveNoWrongPayload) {
  const auto seed = static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 1;
  SCOPED_TRACE("random seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  StartOnFolder();
  PutCold(1, 96);
  FlipSome(FilesIn("segments"), 48, random);
  const size_t fetched = CountFetched(1, 96);
  const double failures = ColdSample("kvtier_tier_checksum_failures_total");
  EXPECT_EQ(static_cast<double>(96 - fetched), failures) << "each detected, counted, one miss";
  EXPECT_LT(fetched, 96u);
  // What was damaged is a miss from now on, and can be stored again.
  for (uint32_t block = 1; block <= 96; ++block) {
    const kvtier_code code = Put(block, KVTIER_DURABLE);
    EXPECT_TRUE(code == KVTIER_OK || code == KVTIER_PRESENT) << kvtier_code_name(code);
  }
  LeaveHost();
  EXPECT_EQ(CountFetched(1, 96), 96u);
}

TEST_F(Damage, S44_FlippedBitsInEveryStructureNeverStopAStartAndNeverServeWrongBytes) {
  std::mt19937_64 random(7);
  StartOnFolder("while_room");
  PutCold(1, 48);
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    daemon_->Kill();
    for (const char* folder : {"segments", "index"}) FlipSome(FilesIn(folder), 12, random);
    for (const std::string& path : FilesIn("segments")) FlipBit(path, random() % (4096 * 8));
    Restart();
    CountFetched(1, 48);
    for (uint32_t seed = 1; seed <= 48; ++seed) Put(seed, KVTIER_DURABLE);
    LeaveHost();
    EXPECT_EQ(CountFetched(1, 48), 48u);
  }
}

TEST_F(Damage, S44_TruncatedEmptyAndForeignFilesNeverStopAStart) {
  StartOnFolder();
  PutCold(1, 96);
  daemon_->Kill();
  const std::vector<std::string> segments = FilesIn("segments");
  ASSERT_GE(segments.size(), 3u);
  fs::resize_file(segments[0], 0);
  fs::resize_file(segments[1], 100'000);
  std::ofstream(folder_.File("store/segments/00000030.seg")) << "something else";
  std::ofstream(folder_.File("store/segments/notes.txt")) << "something else";
  std::ofstream(folder_.File("store/models/notes.txt")) << "something else";
  std::ofstream(folder_.File("store/index/notes.txt")) << "something else";
  Restart();
  const size_t fetched = CountFetched(1, 96);
  EXPECT_GT(fetched, 0u);
  EXPECT_LT(fetched, 96u);
  ExpectHostServes(1000);
  EXPECT_EQ(Put(5000, KVTIER_DURABLE), KVTIER_OK);
}

}  // namespace
}  // namespace kvtier::e2e
