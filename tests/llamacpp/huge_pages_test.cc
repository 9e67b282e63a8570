#include "client/engines/llamacpp/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

namespace kvtier::llamacpp {
namespace {

TEST(HugePages, AreForLargePrivateAnonymousMemory) {
  const std::string maps =
      "55d000000000-55d004000000 rw-p 00000000 00:00 0          [heap]\n"
      "7f0000000000-7f0002000000 rw-p 00000000 00:00 0 \n"
      "7f0010000000-7f0010fff000 rw-p 00000000 00:00 0 \n"
      "7f0020000000-7f0022000000 r--p 00000000 fd:00 1234       /models/weights.gguf\n"
      "7f0030000000-7f0032000000 rw-p 00000000 fd:00 1234       /models/weights.gguf\n"
      "7f0040000000-7f0042000000 rw-s 00000000 00:05 0          /memfd:arena (deleted)\n"
      "7f0050000000-7f0052000000 ---p 00000000 00:00 0 \n"
      "7f0060000000-7f0061000000 rw-p 00000000 00:00 0";
  const std::vector<Region> expected = {{.begin = 0x7f0000000000, .end = 0x7f0002000000},
                                        {.begin = 0x7f0060000000, .end = 0x7f0061000000}};
  EXPECT_EQ(LargeRegions(maps, kHugeRegionBytesMin), expected);
}

TEST(HugePages, WhatIsNoListOfRegionsHasNone) {
  for (const char* maps : {"", "\n\n", "rw-p", "7f00 rw-p 0 00:00 0", "-7f00 rw-p 0 00:00 0",
                           "7f00- rw-p 0 00:00 0", "9000-8000 rw-p 0 00:00 0", "x-y rw-p 0 00:00 0"}) {
    EXPECT_TRUE(LargeRegions(maps, 0).empty()) << maps;
  }
}

std::string TextOf(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(HugePages, KeepWhatIsInTheMemory) {
  constexpr size_t kBytes = size_t{32} << 20;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const values = static_cast<uint64_t*>(memory);
  for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) values[i] = i * 0x9E3779B97F4A7C15;
  const uint64_t bytes = UseHugePages();
  const std::string enabled = TextOf("/sys/kernel/mm/transparent_hugepage/enabled");
  if (enabled.empty() || enabled.find("[never]") != std::string::npos) {
    EXPECT_EQ(bytes, 0u);
  } else {
    EXPECT_GE(bytes, kBytes);
  }
  bool same = true;
  for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) same &= values[i] == i * 0x9E3779B97F4A7C15;
  EXPECT_TRUE(same);
  ::munmap(memory, kBytes);
}

}  // namespace
}  // namespace kvtier::llamacpp
