// On a real DAX file system and a real memory node without processors: with KVTIER_TEST_DAX, the folder of
// such a file system on a machine that has the node too. tests/qemu/dax.sh makes that machine; nothing is
// skipped there.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>

#include "tests/tiers/cxl_fixture.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class CxlMachineTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* dax = std::getenv("KVTIER_TEST_DAX");
    if (dax == nullptr) GTEST_SKIP() << "KVTIER_TEST_DAX names no DAX file system; see tests/qemu/dax.sh";
    dax_ = dax;
    path_ = dax_ + "/file";
  }
  void TearDown() override {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }
  static CxlMapping::Options On(const CxlTarget& target, uint64_t bytes) {
    return {.target = target, .bytes = bytes, .accept = {}};
  }
  const ForcedGranularity as_it_is_{nullptr};
  std::string dax_, path_;
};

/// Flags of the mapping that holds `address`, as the kernel names them.
std::string MappingFlags(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = begin <= at && at < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST_F(CxlMachineTest, AFileOnADaxFileSystemIsPersistentByCacheLinesWithoutTheKernel) {
  const CxlTarget target = ResolveCxl({.path = path_, .bytes = 4 * kMiB}, CxlSystem{}).value();
  {
    auto mapping = CxlMapping::Make(On(target, 4 * kMiB)).value();
    EXPECT_EQ(mapping->kind(), CxlKind::kFsDax);
    EXPECT_EQ(mapping->persistence(), CxlPersistence::kCacheLine);
    // "sf": MAP_SYNC. Without it the file system's own metadata could be lost under a flushed store.
    EXPECT_THAT(MappingFlags(mapping->span().data()), testing::HasSubstr(" sf "));
    mapping->Write(4096 + 8, std::vector<std::byte>(5000, std::byte{0x5A}));
    EXPECT_TRUE(mapping->Persist(4096 + 8, 5000).ok());
  }
  auto again = CxlMapping::Make(On(target, 4 * kMiB)).value();
  EXPECT_EQ(again->span()[4096 + 8], std::byte{0x5A});
  EXPECT_EQ(again->span()[4096 + 5007], std::byte{0x5A});
  EXPECT_EQ(again->span()[4096 + 5008], std::byte{0});
}

TEST_F(CxlMachineTest, WithoutAPathTheDaxFileSystemIsFound) {
  const CxlTarget target = ResolveCxl({.bytes = 4 * kMiB}, CxlSystem{}).value();
  EXPECT_EQ(target.kind, CxlKind::kFsDax);
  EXPECT_EQ(target.path, dax_ + "/" + std::string(kCxlFileName));
}

TEST_F(CxlMachineTest, MemoryOfANodeWithoutProcessorsIsFoundAndIsThere) {
  const std::vector<NumaNode> nodes = ListNumaNodes(CxlSystem{});
  const auto far = std::ranges::find_if(nodes, [](const NumaNode& node) { return !node.has_cpus; });
  ASSERT_NE(far, nodes.end());
  const CxlTarget target = ResolveCxl({.kind = CxlKind::kNuma, .bytes = 64 * kMiB}, CxlSystem{}).value();
  EXPECT_EQ(target.kind, CxlKind::kNuma);
  EXPECT_EQ(target.numa_node, far->id);
  auto mapping = CxlMapping::Make(On(target, 64 * kMiB)).value();
  const NumaPlacement placement = mapping->Placement();
  EXPECT_EQ(placement.node, static_cast<int32_t>(far->id));
  EXPECT_GT(placement.sampled, 0u);
  EXPECT_EQ(placement.on_node, placement.sampled);
  EXPECT_EQ(mapping->persistence(), CxlPersistence::kNone);
}

TEST_F(CxlMachineTest, ANodeWithoutSoMuchMemoryIsRefused) {
  EXPECT_EQ(ResolveCxl({.kind = CxlKind::kNuma, .bytes = uint64_t{1} << 40}, CxlSystem{}).status().code(),
            Code::kResourceExhausted);
}

/// The store on real persistent memory: what a process that is gone had committed is there for the next.
TEST_F(CxlMachineTest, AStoreOnADaxFileSystemIsPersistent) {
  const CxlStoreOptions options = TestCxlOptions();
  const CxlTarget target = ResolveCxl({.path = path_, .bytes = options.capacity_bytes}, CxlSystem{}).value();
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  {
    auto store = CxlStore::Make(options, MapForCxlStore(options, target).value()).value();
    ASSERT_TRUE(store->Recover().ok());
    ASSERT_TRUE(store->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok());
    TestAllocator allocator;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const ColdRecord record = WriteBlock(*store, *io, allocator, seed).value();
      ASSERT_TRUE(store->Commit({&record, 1}, *io).ok());
    }
  }
  auto store = CxlStore::Make(options, MapForCxlStore(options, target).value()).value();
  const ColdRecovery recovery = store->Recover().value();
  ASSERT_EQ(recovery.blocks.size(), 5u);
  for (const auto& block : recovery.blocks) {
    EXPECT_TRUE(CheckBlock(*store, *io, block, block.identity.first_position / 64).ok());
  }
}

}  // namespace
}  // namespace kvtier
