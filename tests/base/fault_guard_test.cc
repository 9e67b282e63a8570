#include "tiers/base/fault_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tiers/base/mapping.h"
#include "tiers/base/memfd.h"

namespace kvtier {
namespace {

constexpr uint64_t kPage = 4096;

/// A mapped memory file that can be cut under the mapping.
struct Mapped {
  explicit Mapped(uint64_t bytes)
      : fd(MakeMemoryFile("kvtier-test", bytes).value()),
        memory(MappedMemory::MapShared(fd.get(), bytes, MapAccess::kReadWrite).value()) {}
  void CutTo(uint64_t bytes) { KVTIER_CHECK(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0); }
  UniqueFd fd;
  MappedMemory memory;
};

TEST(FaultGuard, AFileThatIsCutReadsAsZerosAndSaysSo) {
  Mapped mapped(8 * kPage);
  FaultGuard guard = FaultGuard::Watch(mapped.memory.span(), kPage).value();
  std::memset(mapped.memory.data(), 7, 8 * kPage);
  EXPECT_FALSE(guard.lost());
  mapped.CutTo(2 * kPage);
  const std::span<std::byte> all = mapped.memory.span();
  EXPECT_TRUE(std::all_of(all.begin() + 2 * kPage, all.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(
      std::all_of(all.begin(), all.begin() + 2 * kPage, [](std::byte b) { return b == std::byte{7}; }));
  EXPECT_TRUE(guard.lost());
}

TEST(FaultGuard, AWriteToAPageThatIsGoneIsSurvived) {
  Mapped mapped(4 * kPage);
  FaultGuard guard = FaultGuard::Watch(mapped.memory.span(), kPage).value();
  mapped.CutTo(0);
  std::memset(mapped.memory.data() + kPage, 1, kPage);
  EXPECT_TRUE(guard.lost());
}

TEST(FaultGuard, OneMappingsLossIsNotAnothers) {
  Mapped lost(kPage), whole(kPage);
  FaultGuard first = FaultGuard::Watch(lost.memory.span(), kPage).value();
  FaultGuard second = FaultGuard::Watch(whole.memory.span(), kPage).value();
  lost.CutTo(0);
  EXPECT_EQ(lost.memory.data()[5], std::byte{0});
  EXPECT_TRUE(first.lost());
  EXPECT_FALSE(second.lost());
}

TEST(FaultGuard, GuardsAreBoundedAndComeBack) {
  Mapped mapped(kPage);
  std::vector<FaultGuard> guards;
  for (size_t i = 0; i < FaultGuard::kMaxGuards; ++i) {
    Result<FaultGuard> guard = FaultGuard::Watch(mapped.memory.span(), kPage);
    ASSERT_TRUE(guard.ok()) << i;
    guards.push_back(std::move(guard).value());
  }
  EXPECT_EQ(FaultGuard::Watch(mapped.memory.span(), kPage).status().code(), Code::kResourceExhausted);
  guards.pop_back();
  EXPECT_TRUE(FaultGuard::Watch(mapped.memory.span(), kPage).ok());
}

void TouchWhatNobodyWatches() {
  Mapped watched(kPage), other(kPage);
  const FaultGuard guard = FaultGuard::Watch(watched.memory.span(), kPage).value();
  other.CutTo(0);
  *static_cast<volatile std::byte*>(other.memory.data()) = std::byte{1};
}

TEST(FaultGuardDeathTest, AFaultInMemoryThatNobodyWatchesEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(TouchWhatNobodyWatches(), "");
}

}  // namespace
}  // namespace kvtier
