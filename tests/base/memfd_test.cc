#include "tiers/base/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>

#include "tiers/base/mapping.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 64 << 10;

TEST(MemoryFile, IsClosedOnExecAndHoldsZeros) {
  auto file = MakeMemoryFile("kvtier-test", kBytes);
  ASSERT_TRUE(file.ok());
  EXPECT_NE(::fcntl(file->get(), F_GETFD) & FD_CLOEXEC, 0);
  auto memory = MappedMemory::MapShared(file->get(), kBytes, MapAccess::kReadWrite);
  ASSERT_TRUE(memory.ok());
  for (std::byte b : memory->span()) ASSERT_EQ(b, std::byte{0});
}

TEST(MemoryFile, SealedAgainstFutureWritesStaysWritableThroughOldMappingsOnly) {
  auto file = MakeMemoryFile("kvtier-test", kBytes);
  ASSERT_TRUE(file.ok());
  auto writable = MappedMemory::MapShared(file->get(), kBytes, MapAccess::kReadWrite);
  ASSERT_TRUE(writable.ok());
  ASSERT_TRUE(AddSeals(file->get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL).ok());

  auto late = MappedMemory::MapShared(file->get(), kBytes, MapAccess::kReadWrite);
  EXPECT_EQ(late.status().code(), Code::kPermissionDenied);
  auto reader = MappedMemory::MapShared(file->get(), kBytes, MapAccess::kReadOnly);
  ASSERT_TRUE(reader.ok());
  writable->span()[17] = std::byte{42};
  EXPECT_EQ(reader->span()[17], std::byte{42});
  EXPECT_NE(::ftruncate(file->get(), 0), 0);
  EXPECT_FALSE(AddSeals(file->get(), F_SEAL_WRITE).ok()) << "sealing is sealed";
}

TEST(CheckSealed, RefusesWhatCouldShrinkOrIsTooSmallOrIsNoMemoryFile) {
  auto file = MakeMemoryFile("kvtier-test", kBytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(CheckSealed(file->get(), F_SEAL_SHRINK, kBytes).code(), Code::kInvalidArgument);
  ASSERT_TRUE(AddSeals(file->get(), F_SEAL_SHRINK).ok());
  EXPECT_TRUE(CheckSealed(file->get(), F_SEAL_SHRINK, kBytes).ok());
  EXPECT_EQ(CheckSealed(file->get(), F_SEAL_SHRINK, kBytes + 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckSealed(file->get(), F_SEAL_SHRINK | F_SEAL_GROW, kBytes).code(), Code::kInvalidArgument);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  EXPECT_EQ(CheckSealed(read_end.get(), 0, 0).code(), Code::kInvalidArgument);
}

TEST(MappedMemory, PrefaultsEveryPageAndMoves) {
  auto file = MakeMemoryFile("kvtier-test", kBytes);
  ASSERT_TRUE(file.ok());
  auto memory = MappedMemory::MapShared(file->get(), kBytes, MapAccess::kReadWrite);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->Prefault().ok());
  MappedMemory other = std::move(memory).value();
  EXPECT_EQ(other.size(), kBytes);
  other.Reset();
  EXPECT_EQ(other.data(), nullptr);
}

TEST(MappedMemory, SaysWhyItCannotMap) {
  EXPECT_EQ(MappedMemory::MapShared(-1, kBytes, MapAccess::kReadOnly).status().code(), Code::kUnavailable);
  auto file = MakeMemoryFile("kvtier-test", kBytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(MappedMemory::MapShared(file->get(), 0, MapAccess::kReadOnly).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier
