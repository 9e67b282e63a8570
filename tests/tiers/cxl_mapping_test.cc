#include "tiers/cxl_mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/tiers/cxl_fixture.h"
#include "tiers/base/mapping.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = uint64_t{1} << 20;

/// Sysfs, /dev and mount table of a machine that a test describes.
class FakeMachine {
 public:
  FakeMachine() {
    system.sysfs = folder_.path() + "/sys";
    system.dev = folder_.path() + "/dev";
    system.mounts = folder_.path() + "/mounts";
    fs::create_directories(system.sysfs + "/devices/system/node");
    fs::create_directories(system.dev);
    std::ofstream(system.mounts) << "";
  }
  void AddNode(uint32_t id, const std::string& cpus, uint64_t free_bytes) {
    const std::string of_node = system.sysfs + "/devices/system/node/node" + std::to_string(id);
    fs::create_directories(of_node);
    std::ofstream(of_node + "/cpulist") << cpus << "\n";
    std::ofstream meminfo(of_node + "/meminfo");
    for (const char* field : {"MemTotal:", "MemFree:"}) {
      meminfo << "Node " << id << " " << field << "       " << (free_bytes >> 10) << " kB\n";
    }
  }
  /// /dev/null's number stands for that of a device `name`, of which sysfs says what it would of a real one.
  void AddDevice(const std::string& name, uint64_t bytes, const std::string& parent) {
    fs::create_symlink("/dev/null", system.dev + "/" + name);
    const std::string real = system.sysfs + "/devices/" + parent + "/" + name;
    fs::create_directories(real);
    fs::create_directories(system.sysfs + "/bus/dax/devices");
    fs::create_directories(system.sysfs + "/dev/char");
    std::ofstream(real + "/size") << bytes << "\n";
    fs::create_symlink(real, system.sysfs + "/bus/dax/devices/" + name);
    fs::create_symlink(system.sysfs + "/bus/dax", real + "/subsystem");
    fs::remove(system.sysfs + "/dev/char/1:3");
    fs::create_symlink(real, system.sysfs + "/dev/char/1:3");
  }
  void AddMount(const std::string& folder, const std::string& options) {
    std::ofstream(system.mounts, std::ios::app) << "/dev/pmem0 " << folder << " ext4 " << options << " 0 0\n";
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  CxlSystem system;

 private:
  TempFolder folder_;
};

TEST(ResolveCxl, APathIsADeviceAFolderOrAFileByWhatItIs) {
  FakeMachine machine;
  machine.AddDevice("dax0.0", 64 * kMiB, "platform/ndbus0/region0");
  fs::create_directory(machine.Path("folder"));
  std::ofstream(machine.Path("file")) << "x";

  const auto device = ResolveCxl({.path = machine.Path("dev/dax0.0")}, machine.system);
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  EXPECT_EQ(device->kind, CxlKind::kDevDax);
  EXPECT_TRUE(device->device_keeps_data);
  const auto folder = ResolveCxl({.path = machine.Path("folder")}, machine.system);
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->path, machine.Path("folder/kvtier.cxl"));
  EXPECT_TRUE(folder->any_file);
  EXPECT_EQ(ResolveCxl({.path = machine.Path("file")}, machine.system)->kind, CxlKind::kFile);
  EXPECT_EQ(ResolveCxl({.path = machine.Path("new")}, machine.system)->path, machine.Path("new"));
}

TEST(ResolveCxl, MemoryThatWasSetAsideKeepsNoData) {
  FakeMachine machine;
  machine.AddDevice("dax1.0", 64 * kMiB, "platform/hmem.0");
  EXPECT_FALSE(ResolveCxl({.path = machine.Path("dev/dax1.0")}, machine.system)->device_keeps_data);
}

TEST(ResolveCxl, S38_WhatIsNotThereIsNotFound) {
  FakeMachine machine;
  machine.AddNode(0, "0-3", 64 * kMiB);
  EXPECT_EQ(ResolveCxl({}, machine.system).status().code(), Code::kNotFound);
  EXPECT_EQ(ResolveCxl({.path = machine.Path("dev/dax0.0")}, machine.system).status().code(),
            Code::kNotFound);
  EXPECT_FALSE(fs::exists(machine.Path("dev/dax0.0")));
  EXPECT_EQ(ResolveCxl({.path = machine.Path("none/file")}, machine.system).status().code(), Code::kNotFound);
  EXPECT_EQ(ResolveCxl({.numa_node = 5}, machine.system).status().code(), Code::kNotFound);
  EXPECT_EQ(ResolveCxl({.kind = CxlKind::kNuma}, machine.system).status().code(), Code::kNotFound);
  EXPECT_EQ(ResolveCxl({.kind = CxlKind::kDevDax}, machine.system).status().code(), Code::kNotFound);
  EXPECT_EQ(ResolveCxl({.kind = CxlKind::kFsDax}, machine.system).status().code(), Code::kNotFound);
}

TEST(ResolveCxl, WithoutAPathADeviceGoesBeforeADaxMountBeforeANodeWithoutCpus) {
  FakeMachine machine;
  machine.AddNode(0, "0-3", 64 * kMiB);
  machine.AddNode(2, "", 64 * kMiB);
  const CxlRequest request{.bytes = 16 * kMiB};
  auto target = ResolveCxl(request, machine.system);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->kind, CxlKind::kNuma);
  EXPECT_EQ(target->numa_node, 2u);
  machine.AddMount(machine.Path("plain"), "rw,relatime");
  machine.AddMount(machine.Path("never"), "rw,dax=never");
  machine.AddMount(machine.Path("pmem"), "rw,relatime,dax=always");
  target = ResolveCxl(request, machine.system);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->kind, CxlKind::kFsDax);
  EXPECT_EQ(target->path, machine.Path("pmem/kvtier.cxl"));
  machine.AddDevice("dax0.0", 8 * kMiB, "ndbus0");
  EXPECT_EQ(ResolveCxl(request, machine.system)->kind, CxlKind::kFsDax) << "the device is too small";
  machine.AddDevice("dax0.1", 32 * kMiB, "ndbus0");
  target = ResolveCxl(request, machine.system);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->kind, CxlKind::kDevDax);
  EXPECT_EQ(target->path, machine.Path("dev/dax0.1"));
}

TEST(ResolveCxl, AnotherKindThanTheOneNamedIsRefused) {
  FakeMachine machine;
  std::ofstream(machine.Path("file")) << "x";
  EXPECT_EQ(
      ResolveCxl({.kind = CxlKind::kDevDax, .path = machine.Path("file")}, machine.system).status().code(),
      Code::kFailedPrecondition);
  EXPECT_EQ(ResolveCxl({.path = "/dev/null"}, machine.system).status().code(), Code::kFailedPrecondition);
}

TEST(ResolveCxl, ANodeMustHaveTheMemoryFree) {
  FakeMachine machine;
  machine.AddNode(1, "", 8 * kMiB);
  EXPECT_EQ(ResolveCxl({.numa_node = 1, .bytes = 16 * kMiB}, machine.system).status().code(),
            Code::kResourceExhausted);
  EXPECT_TRUE(ResolveCxl({.numa_node = 1, .bytes = 8 * kMiB}, machine.system).ok());
}

std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<std::byte>(i * 7 + 1);
  return pattern;
}

class CxlMappingTest : public testing::Test {
 protected:
  CxlMapping::Options FileOptions(uint64_t bytes = kMiB) const {
    return {
        .target = {.kind = CxlKind::kFile, .path = path_, .any_file = true}, .bytes = bytes, .accept = {}};
  }
  TempFolder folder_;
  std::string path_ = folder_.path() + "/file";
};

TEST_F(CxlMappingTest, WhatWasWrittenIsInTheFileAfterwards) {
  const std::vector<std::byte> pattern = Pattern(10'000);
  {
    auto mapping = CxlMapping::Make(FileOptions()).value();
    mapping->Write(64, pattern);
    mapping->Zero(128, 64);
    ASSERT_TRUE(mapping->Persist(64, pattern.size()).ok());
    EXPECT_TRUE(std::equal(pattern.begin(), pattern.begin() + 64, mapping->span().begin() + 64));
  }
  EXPECT_EQ(fs::file_size(path_), kMiB);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, kMiB) << "the file has holes";
  auto again = CxlMapping::Make(FileOptions()).value();
  const auto bytes = again->span();
  EXPECT_TRUE(std::equal(pattern.begin() + 128, pattern.end(), bytes.begin() + 64 + 128));
  EXPECT_EQ(bytes[128], std::byte{0});
  EXPECT_EQ(bytes[191], std::byte{0});
}

TEST_F(CxlMappingTest, S53_TheSecondUserIsRefused) {
  auto first = CxlMapping::Make(FileOptions()).value();
  const Status second = CxlMapping::Make(FileOptions()).status();
  EXPECT_EQ(second.code(), Code::kFailedPrecondition);
  EXPECT_NE(second.message().find("another daemon uses it"), std::string::npos);
  first.reset();
  EXPECT_TRUE(CxlMapping::Make(FileOptions()).ok());
}

TEST_F(CxlMappingTest, ASymbolicLinkIsRefusedByThatName) {
  CxlMapping::Make(FileOptions()).value();
  fs::rename(path_, folder_.path() + "/real");
  fs::create_symlink(folder_.path() + "/real", path_);
  const Status status = CxlMapping::Make(FileOptions()).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), path_ + " is a symbolic link: name what it leads to");
}

TEST_F(CxlMappingTest, ARefusedFileIsLeftAsItIs) {
  std::ofstream(path_) << "somebody's letters";
  CxlMapping::Options options = FileOptions();
  std::string seen;
  options.accept = [&](std::span<const std::byte> start) {
    seen.assign(reinterpret_cast<const char*>(start.data()), start.size());
    return Status(Code::kFailedPrecondition, "not mine");
  };
  EXPECT_EQ(CxlMapping::Make(options).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(seen, "somebody's letters");
  EXPECT_EQ(fs::file_size(path_), seen.size());
}

TEST_F(CxlMappingTest, S41_AFileGivesBackWhatIsBeyondTheCapacityAndWhoMapsItStillReadsZeros) {
  MappedMemory client;
  {
    auto mapping = CxlMapping::Make(FileOptions(4 * kMiB)).value();
    mapping->Write(3 * kMiB, Pattern(100));
    const UniqueFd fd = mapping->OpenReadOnly().value();
    client = MappedMemory::MapShared(fd.get(), mapping->mapped_bytes(), MapAccess::kReadOnly).value();
    EXPECT_EQ(client.data()[3 * kMiB], Pattern(1)[0]);
  }
  auto smaller = CxlMapping::Make(FileOptions(2 * kMiB)).value();
  smaller->Write(5, Pattern(100));
  EXPECT_EQ(client.data()[3 * kMiB], std::byte{0});
  EXPECT_EQ(client.data()[4 * kMiB - 1], std::byte{0});
  EXPECT_EQ(client.data()[5], Pattern(1)[0]);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_LT(static_cast<uint64_t>(info.st_blocks) * 512, 3 * kMiB);
  EXPECT_EQ(smaller->span().size(), 2 * kMiB);
  smaller.reset();
  auto larger = CxlMapping::Make(FileOptions(4 * kMiB)).value();
  EXPECT_EQ(larger->span()[3 * kMiB], std::byte{0});
  larger->Write(3 * kMiB, Pattern(100));
  EXPECT_EQ(client.data()[3 * kMiB], Pattern(1)[0]);
}

TEST_F(CxlMappingTest, WhoMayOnlyReadCannotWriteAndDoesNotKeepTheLock) {
  auto mapping = CxlMapping::Make(FileOptions()).value();
  mapping->Write(0, Pattern(100));
  const UniqueFd fd = mapping->OpenReadOnly().value();
  EXPECT_EQ(::fcntl(fd.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  EXPECT_NE(::pwrite(fd.get(), "x", 1, 0), 1);
  EXPECT_NE(::ftruncate(fd.get(), 0), 0);
  const auto client =
      MappedMemory::MapShared(fd.get(), mapping->mapped_bytes(), MapAccess::kReadOnly).value();
  EXPECT_EQ(client.data()[1], Pattern(2)[1]);
  mapping.reset();
  EXPECT_TRUE(CxlMapping::Make(FileOptions()).ok());
}

TEST_F(CxlMappingTest, OnlyWhatIsNewHoldsNothingOfAnybodys) {
  EXPECT_EQ(CxlMapping::Make(FileOptions()).value()->stale_bytes(), 0u);
  const auto again = CxlMapping::Make(FileOptions()).value();
  EXPECT_EQ(again->stale_bytes(), again->span().size());
}

TEST_F(CxlMappingTest, AFileThatIsCutUnderTheMappingReadsAsZerosAndFailsTheNextPersist) {
  auto mapping = CxlMapping::Make(FileOptions()).value();
  mapping->Write(0, Pattern(4096));
  fs::resize_file(path_, 0);
  EXPECT_EQ(mapping->span()[5], std::byte{0});
  EXPECT_TRUE(mapping->lost());
  EXPECT_FALSE(mapping->Persist(0, 4096).ok());
}

TEST_F(CxlMappingTest, APlainFileIsNoDaxFileSystem) {
  const ForcedGranularity as_it_is(nullptr);
  CxlMapping::Options options = FileOptions();
  options.target.kind = CxlKind::kFsDax;
  options.target.any_file = false;
  const Status status = CxlMapping::Make(options).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_FALSE(fs::exists(path_)) << "made for nothing";
}

TEST_F(CxlMappingTest, AFileWhoseStoresAreFlushedByCacheLineIsOnADaxFileSystem) {
  for (const bool named : {false, true}) {
    const ForcedGranularity dax(named ? "CACHE_LINE" : "BYTE");
    CxlMapping::Options options = FileOptions();
    if (named) options.target.kind = CxlKind::kFsDax;
    auto mapping = CxlMapping::Make(options).value();
    EXPECT_EQ(mapping->kind(), CxlKind::kFsDax);
    EXPECT_EQ(mapping->persistence(), named ? CxlPersistence::kCacheLine : CxlPersistence::kByte);
    mapping->Write(100, Pattern(5000));
    EXPECT_TRUE(mapping->Persist(100, 5000).ok());
    EXPECT_EQ(mapping->span()[101], Pattern(5000)[1]);
  }
}

TEST_F(CxlMappingTest, ItSaysWhatItSurvives) {
  const ForcedGranularity as_it_is(nullptr);
  auto mapping = CxlMapping::Make(FileOptions()).value();
  EXPECT_EQ(mapping->kind(), CxlKind::kFile);
  // In a temporary folder of the file system, or of one in memory.
  EXPECT_TRUE(mapping->persistence() == CxlPersistence::kPage ||
              mapping->persistence() == CxlPersistence::kNone);
  CxlMapping::Options in_memory = FileOptions();
  in_memory.target.path = "/dev/shm/kvtier-test-" + std::to_string(::getpid());
  if (auto shm = CxlMapping::Make(in_memory); shm.ok()) {
    EXPECT_EQ((*shm)->persistence(), CxlPersistence::kNone);
    EXPECT_NE((*shm)->Describe().find("not persistent"), std::string::npos);
    fs::remove(in_memory.target.path);
  }
}

TEST_F(CxlMappingTest, MemoryOfANodeIsWhereItShouldBe) {
  const std::vector<NumaNode> nodes = ListNumaNodes(CxlSystem{});
  if (nodes.empty()) GTEST_SKIP() << "this kernel names no NUMA nodes";
  CxlMapping::Options options{
      .target = {.kind = CxlKind::kNuma, .path = {}, .numa_node = nodes[0].id}, .bytes = kMiB, .accept = {}};
  const auto made = CxlMapping::Make(options);
  if (made.status().code() == Code::kPermissionDenied) GTEST_SKIP() << made.status().message();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const NumaPlacement placement = (*made)->Placement();
  EXPECT_EQ(placement.node, static_cast<int32_t>(nodes[0].id));
  EXPECT_EQ(placement.on_node, placement.sampled);
  EXPECT_GT(placement.sampled, 0u);
  EXPECT_EQ((*made)->persistence(), CxlPersistence::kNone);
}

}  // namespace
}  // namespace kvtier
