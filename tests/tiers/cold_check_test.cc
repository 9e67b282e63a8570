#include "tiers/cold_check.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <map>

#include "tests/tiers/cold_parts.h"
#include "tiers/cold_folder.h"
#include "tiers/cold_index.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// Every file of a folder with its bytes.
std::map<std::string, std::string> Snapshot(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string bytes;
    if (entry.is_regular_file()) {
      std::ifstream file(entry.path(), std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(file), {});
    }
    files.emplace(entry.path().string(), std::move(bytes));
  }
  return files;
}

class ColdCheckTest : public ColdStoreTest {
 protected:
  static constexpr uint64_t kBlocks = 40;

  /// Blocks 1..kBlocks, and a clean stop.
  void StoreAndClose() {
    StoreMany(kBlocks);
    store_.reset();
  }
  ColdCheck Check() {
    const std::map<std::string, std::string> before = Snapshot(folder_.path());
    const Result<ColdCheck> check = CheckColdStore(folder_.path());
    EXPECT_EQ(Snapshot(folder_.path()), before) << "a check changed something";
    KVTIER_CHECK(check.ok());
    return *check;
  }
  ColdRepair Repair() {
    const Result<ColdRepair> repair = RepairColdStore(folder_.path());
    EXPECT_TRUE(repair.ok()) << repair.status().ToString();
    return repair.ok() ? *repair : ColdRepair{};
  }
  /// All but the named are there with their bytes, also without the index.
  void ExpectAllBut(const std::vector<uint64_t>& lost) {
    const auto expect = [&] {
      for (uint64_t seed = 1; seed <= kBlocks; ++seed) {
        const ColdRecord* found = Recovered(seed);
        if (std::find(lost.begin(), lost.end(), seed) != lost.end()) {
          EXPECT_EQ(found, nullptr) << seed;
          continue;
        }
        ASSERT_NE(found, nullptr) << seed;
        EXPECT_TRUE(CheckBlock(*store_, *io_, *found, seed).ok()) << seed;
      }
    };
    recovery_ = OpenStore(folder_.path());
    EXPECT_EQ(recovery_.scanned_records, 0u) << "repair left a complete index";
    EXPECT_EQ(recovery_.dropped_records, 0u);
    expect();
    store_.reset();
    fs::remove_all(folder_.path() + "/index");
    recovery_ = OpenStore(folder_.path());
    EXPECT_EQ(recovery_.dropped_records, 0u);
    expect();
    store_.reset();
  }
  /// What the file takes of the disk.
  uint64_t AllocatedBytes(uint32_t segment) const {
    struct stat info {};
    KVTIER_CHECK(::stat(SegmentPath(segment).c_str(), &info) == 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }
  std::string ModelPath() const { return folder_.path() + "/models/" + TestNamespace().ToHex() + ".model"; }
};

TEST_F(ColdCheckTest, AClosedStoreIsSound) {
  StoreAndClose();
  const ColdCheck check = Check();
  EXPECT_TRUE(check.sound()) << testing::PrintToString(check.damage);
  EXPECT_TRUE(check.index_complete);
  EXPECT_EQ(check.live, kBlocks);
  EXPECT_EQ(check.index_entries, kBlocks);
  EXPECT_EQ(check.unindexed, 0u);
  EXPECT_EQ(check.models, 1u);
  EXPECT_EQ(check.segments, stored_.back().place.container + 1u);
  EXPECT_EQ(Repair().blocks, kBlocks);
  EXPECT_TRUE(Check().sound());
  ExpectAllBut({});
}

TEST_F(ColdCheckTest, AStoreInUseIsRefusedAndAKilledOneIsSoundAndSaysWhatTheIndexLacks) {
  for (uint64_t seed = 1; seed <= 10; ++seed) Store(seed);
  Write(11);
  EXPECT_EQ(CheckColdStore(folder_.path()).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(RepairColdStore(folder_.path()).status().code(), Code::kFailedPrecondition);
  TempFolder killed;
  fs::copy(folder_.path(), killed.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const ColdCheck check = CheckColdStore(killed.path()).value();
  EXPECT_TRUE(check.sound()) << testing::PrintToString(check.damage);
  EXPECT_FALSE(check.index_complete);
  EXPECT_EQ(check.live, 11u);
  EXPECT_EQ(check.index_entries, 10u);
  EXPECT_EQ(check.unindexed, 1u);
}

TEST_F(ColdCheckTest, S44_AFlippedBitAnywhereInARecordIsFoundAndBuried) {
  StoreAndClose();
  const Place place = stored_[6].place;
  const uint64_t image_bytes = stored_[6].image_bytes;
  // The record's header; the image's header, table, parts and last byte.
  const uint64_t offsets[] = {0,
                              9,
                              80,
                              kColdRecordHeaderBytes + 5,
                              kColdRecordHeaderBytes + 130,
                              700,
                              4000,
                              kColdRecordHeaderBytes + image_bytes - 1};
  for (const uint64_t offset : offsets) {
    SCOPED_TRACE(offset);
    FlipBit(SegmentPath(place.container), place.offset + offset);
    const ColdCheck check = Check();
    EXPECT_FALSE(check.sound());
    EXPECT_EQ(check.live, kBlocks - 1);
    EXPECT_EQ(check.damaged, offset < kColdRecordHeaderBytes ? 0u : 1u);
    EXPECT_EQ(check.dangling_entries, 1u);
    EXPECT_FALSE(check.damage.empty());
    FlipBit(SegmentPath(place.container), place.offset + offset);
    EXPECT_TRUE(Check().sound());
  }
  FlipBit(SegmentPath(place.container), place.offset + 4000);
  const ColdRepair repair = Repair();
  EXPECT_EQ(repair.blocks, kBlocks - 1);
  EXPECT_EQ(repair.marked_dead, 1u);
  EXPECT_TRUE(Check().sound());
  ExpectAllBut({7});
}

TEST_F(ColdCheckTest, S44_ADamagedSegmentHeaderIsFoundAndRepairedFromTheIndex) {
  StoreAndClose();
  FlipBit(SegmentPath(0), 17);
  const ColdCheck check = Check();
  EXPECT_EQ(check.damaged_headers, 1u);
  EXPECT_GT(check.dangling_entries, 0u);
  EXPECT_FALSE(check.sound());
  const ColdRepair repair = Repair();
  EXPECT_EQ(repair.headers_repaired, 1u);
  EXPECT_EQ(repair.blocks, kBlocks);
  EXPECT_TRUE(Check().sound());
  ExpectAllBut({});
}

TEST_F(ColdCheckTest, S44_ADamagedIndexIsFoundAndBuiltAnew) {
  StoreAndClose();
  for (const char* name : {"CURRENT", "MANIFEST", ".sst", ".log"}) {
    SCOPED_TRACE(name);
    bool damaged = false;
    for (const auto& entry : fs::directory_iterator(folder_.path() + "/index")) {
      const std::string file = entry.path().filename().string();
      const bool meant = file.starts_with(name) || entry.path().extension() == name;
      if (!meant || fs::file_size(entry.path()) < 10) continue;
      FlipBit(entry.path().string(), fs::file_size(entry.path()) / 2, 3);
      damaged = true;
    }
    if (damaged) {
      const ColdCheck check = Check();
      // RocksDB reads its log up to the damage and calls that the end: then entries are missing.
      EXPECT_TRUE(!check.sound() || check.unindexed > 0);
      EXPECT_EQ(check.live, kBlocks);
    }
    EXPECT_EQ(Repair().blocks, kBlocks);
    EXPECT_TRUE(Check().sound());
  }
  fs::remove_all(folder_.path() + "/index");
  EXPECT_TRUE(Check().index_damaged);
  EXPECT_EQ(Repair().blocks, kBlocks);
  EXPECT_TRUE(Check().sound());
  ExpectAllBut({});
}

TEST_F(ColdCheckTest, S44_AnEntryThatPointsElsewhereIsFound) {
  StoreAndClose();
  {
    auto index = ColdIndex::Open({.folder = folder_.path() + "/index", .reserve_bytes = 1 << 20}).value();
    ColdRecord wrong = stored_[2];
    wrong.place.offset = stored_[3].place.offset;
    ASSERT_TRUE(index->Put({&wrong, 1}).ok());
    ASSERT_TRUE(index->MarkClean().ok());
  }
  const ColdCheck check = Check();
  EXPECT_EQ(check.dangling_entries, 1u);
  EXPECT_EQ(check.unindexed, 1u);
  EXPECT_FALSE(check.sound());
  EXPECT_EQ(Repair().blocks, kBlocks);
  EXPECT_TRUE(Check().sound());
  ExpectAllBut({});
}

TEST_F(ColdCheckTest, S44_TruncatedEmptyAndForeignSegmentsAreFound) {
  StoreAndClose();
  fs::resize_file(SegmentPath(0), stored_[3].place.offset + 5000);
  fs::resize_file(SegmentPath(1), 0);
  TempFolder other;
  OpenStore(other.path());
  allocator_ = TestAllocator();
  Store(50);
  store_.reset();
  fs::copy_file(other.path() + "/segments/00000000.seg", SegmentPath(7));
  const ColdCheck check = Check();
  EXPECT_EQ(check.truncated_files, 1u);
  EXPECT_EQ(check.damaged_headers, 1u);
  EXPECT_EQ(check.foreign_files, 1u);
  EXPECT_FALSE(check.sound());
  const ColdRepair repair = Repair();
  EXPECT_GE(repair.blocks, 3u);
  const ColdCheck repaired = Check();
  EXPECT_TRUE(repaired.sound()) << testing::PrintToString(repaired.damage);
  for (const uint32_t number : {0u, 1u}) EXPECT_EQ(AllocatedBytes(number), kTestSegmentBytes) << number;
  recovery_ = OpenStore(folder_.path());
  for (uint64_t seed = 1; seed <= 3; ++seed) EXPECT_NE(Recovered(seed), nullptr) << seed;
  EXPECT_EQ(Recovered(4), nullptr);
  EXPECT_EQ(Recovered(50), nullptr);
}

TEST_F(ColdCheckTest, S44_BlocksOfADamagedModelFileAreOrphansThatRepairDrops) {
  StoreAndClose();
  FlipBit(ModelPath(), fs::file_size(ModelPath()) - 1);
  const ColdCheck check = Check();
  EXPECT_EQ(check.damaged_models, 1u);
  EXPECT_EQ(check.orphans, kBlocks);
  EXPECT_FALSE(check.sound());
  const ColdRepair repair = Repair();
  EXPECT_EQ(repair.marked_dead, kBlocks);
  EXPECT_EQ(repair.blocks, 0u);
  const ColdCheck repaired = Check();
  EXPECT_EQ(repaired.live, 0u);
  EXPECT_TRUE(repaired.sound()) << testing::PrintToString(repaired.damage);
}

TEST_F(ColdCheckTest, BlocksOfAModelFileThatCannotBeReadAreKept) {
  StoreAndClose();
  const std::string kept = folder_.path() + "-model";
  fs::rename(ModelPath(), kept);
  fs::create_symlink(ModelPath(), ModelPath());  // opening it fails, whoever does
  EXPECT_EQ(Repair().marked_dead, 0u);
  fs::remove(ModelPath());
  fs::rename(kept, ModelPath());
  EXPECT_TRUE(Check().sound());
  ExpectAllBut({});
}

TEST_F(ColdCheckTest, S44_ASegmentWhoseHeaderNobodyKnowsIsEmptied) {
  StoreAndClose();
  FlipBit(SegmentPath(0), 17);
  fs::remove_all(folder_.path() + "/index");
  const ColdRepair repair = Repair();
  EXPECT_EQ(repair.headers_lost, 1u);
  EXPECT_LT(repair.blocks, kBlocks);
  const ColdCheck check = Check();
  EXPECT_TRUE(check.sound()) << testing::PrintToString(check.damage);
  EXPECT_EQ(check.live, repair.blocks);
}

TEST_F(ColdCheckTest, WhatIsNoFileIsDamage) {
  StoreAndClose();
  ASSERT_EQ(::mkfifo(SegmentPath(9).c_str(), 0600), 0);
  const Result<ColdCheck> check = CheckColdStore(folder_.path());
  ASSERT_TRUE(check.ok());
  EXPECT_EQ(check->damaged_headers, 1u);
  EXPECT_EQ(check->live, kBlocks);
}

class ColdCheckPartsTest : public ColdCheckTest {
 protected:
  /// Blocks 1 and 2, each of base, K tail and V tail, and a clean stop.
  void StorePartsAndClose() {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      parts_.push_back(WriteParts(*store_, *io_, allocator_, MakePartsBlock(seed)).value());
      KVTIER_CHECK(CommitParts(*store_, *io_, parts_.back()).ok());
    }
    store_.reset();
  }

  std::vector<WrittenParts> parts_;
};

TEST_F(ColdCheckPartsTest, S44_ADamagedTailIsFoundAndBuriedAlone) {
  StorePartsAndClose();
  const ColdCheck sound = Check();
  EXPECT_TRUE(sound.sound()) << testing::PrintToString(sound.damage);
  EXPECT_EQ(sound.live, 6u);
  EXPECT_EQ(sound.index_entries, 6u);
  const ColdRecord& v_tail = parts_[0].tails.back();
  FlipBit(SegmentPath(v_tail.place.container), v_tail.place.offset + kColdRecordHeaderBytes + 2000);
  const ColdCheck damaged = Check();
  EXPECT_FALSE(damaged.sound());
  EXPECT_EQ(damaged.live, 5u);
  EXPECT_EQ(damaged.damaged, 1u);
  const ColdRepair repair = Repair();
  EXPECT_EQ(repair.blocks, 2u);
  EXPECT_EQ(repair.marked_dead, 1u);
  EXPECT_TRUE(Check().sound());
  recovery_ = OpenStore(folder_.path());
  EXPECT_EQ(Recovered(1)->k_tail.place, parts_[0].places[0]);
  EXPECT_EQ(Recovered(1)->v_tail.place.bytes, 0u);
  EXPECT_EQ(Recovered(2)->v_tail.place, parts_[1].places[1]);
  EXPECT_EQ(recovery_.dropped_records, 0u);
}

TEST_F(ColdCheckPartsTest, S44_TailsGoWithTheBlocksOfADamagedModelFile) {
  StorePartsAndClose();
  FlipBit(ModelPath(), fs::file_size(ModelPath()) - 1);
  EXPECT_EQ(Check().orphans, 6u);
  EXPECT_EQ(Repair().marked_dead, 6u);
  const ColdCheck check = Check();
  EXPECT_EQ(check.live, 0u);
  EXPECT_EQ(check.index_entries, 0u);
}

TEST_F(ColdCheckTest, S44_ADamagedFormatFileIsRefusedByACheckAndRestoredFromTheSegments) {
  StoreAndClose();
  const std::string path = folder_.path() + "/FORMAT";
  const std::string format = Snapshot(folder_.path()).at(path);
  for (uint64_t offset = 0; offset < format.size(); ++offset) {
    SCOPED_TRACE(offset);
    FlipBit(path, offset, static_cast<int>(offset % 8));
    EXPECT_FALSE(CheckColdStore(folder_.path()).ok());
    ASSERT_TRUE(RestoreColdFormat(folder_.path()).ok());
    ASSERT_EQ(Snapshot(folder_.path()).at(path), format);
  }
  fs::resize_file(path, 1 << 20);
  ASSERT_TRUE(RestoreColdFormat(folder_.path()).ok());
  ASSERT_EQ(Snapshot(folder_.path()).at(path), format);
  fs::remove(path);
  EXPECT_EQ(CheckColdStore(folder_.path()).status().code(), Code::kNotFound);
  EXPECT_EQ(Repair().blocks, kBlocks);
  EXPECT_EQ(Snapshot(folder_.path()).at(path), format);
  EXPECT_TRUE(Check().sound());
  ExpectAllBut({});
}

TEST_F(ColdCheckTest, FormatIsMadeFromWhatMostSegmentsSayOnly) {
  StoreAndClose();
  const std::string path = folder_.path() + "/FORMAT";
  const std::string segments = folder_.path() + "/segments";
  fs::resize_file(path, 0);
  size_t count = 0, damaged = 0;
  for (const auto& entry : fs::directory_iterator(segments)) count += entry.is_regular_file() ? 1 : 0;
  for (; 2 * damaged < count; ++damaged) FlipBit(SegmentPath(static_cast<uint32_t>(damaged)), 17);
  EXPECT_EQ(RepairColdStore(folder_.path()).status().code(), Code::kDataLoss);
  EXPECT_EQ(fs::file_size(path), 0u);
  FlipBit(SegmentPath(0), 17);
  EXPECT_TRUE(RepairColdStore(folder_.path()).ok());
}

TEST_F(ColdCheckTest, WhatIsNoStoreIsLeftAsItIs) {
  TempFolder other;
  std::ofstream(other.path() + "/letter") << "dear";
  EXPECT_EQ(RepairColdStore(other.path()).status().code(), Code::kNotFound);
  EXPECT_EQ(Snapshot(other.path()).size(), 1u);
  EXPECT_EQ(CheckColdStore(folder_.path() + "/nowhere").status().code(), Code::kNotFound);
  EXPECT_EQ(RepairColdStore(folder_.path() + "/nowhere").status().code(), Code::kNotFound);
}

TEST_F(ColdCheckTest, MissingFoldersAreMadeAgain) {
  StoreAndClose();
  fs::remove_all(folder_.path() + "/models");
  EXPECT_FALSE(CheckColdStore(folder_.path()).ok());
  EXPECT_EQ(Repair().marked_dead, kBlocks);
  EXPECT_TRUE(Check().sound());
  fs::remove_all(folder_.path() + "/segments");
  EXPECT_EQ(Repair().blocks, 0u);
  EXPECT_TRUE(Check().sound());
}

TEST_F(ColdCheckTest, LeftoversAreCountedAndRemoved) {
  StoreAndClose();
  std::ofstream(folder_.path() + "/segments/00000009.seg.new") << "half";
  std::ofstream(folder_.path() + "/PROBE") << "half";
  fs::create_directory(folder_.path() + "/index.broken");
  const ColdCheck check = Check();
  EXPECT_EQ(check.leftovers, 3u);
  EXPECT_TRUE(check.sound());
  Repair();
  EXPECT_EQ(Check().leftovers, 0u);
  ExpectAllBut({});
}

}  // namespace
}  // namespace kvtier
