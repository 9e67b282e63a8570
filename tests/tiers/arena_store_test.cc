#include "tiers/arena_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/support/arena_slot.h"
#include "tiers/base/mapping.h"
#include "tiers/base/memfd.h"

namespace kvtier {
namespace {

constexpr ArenaSpec kSpec{.id = {7}, .tier = {0}, .tenant = {1}, .slots = 5, .slot_bytes = 8192};

class ArenaStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto io = MakeBlockIo(BlockIoKind::kSync);
    ASSERT_TRUE(io.ok());
    io_ = std::move(io).value();
    const Status created = store_.Create(kSpec);
    ASSERT_TRUE(created.ok()) << created.ToString();
  }
  /// As a client would have it.
  MappedMemory MapAsReader() {
    auto fd = store_.Descriptor(kSpec.id);
    auto memory =
        MappedMemory::MapShared(fd.value(), ArenaBytes(kSpec.slots, kSpec.slot_bytes), MapAccess::kReadOnly);
    return std::move(memory).value();
  }

  ArenaStore store_;
  std::unique_ptr<BlockIo> io_;
  AlignedBuffer bounce_;
};

TEST_F(ArenaStoreTest, AnArenaIsSealedSizedAndBackedByMemory) {
  const auto fd = store_.Descriptor(kSpec.id);
  ASSERT_TRUE(fd.ok());
  const uint64_t bytes = ArenaBytes(kSpec.slots, kSpec.slot_bytes);
  EXPECT_TRUE(CheckSealed(*fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, bytes).ok());
  EXPECT_FALSE(MappedMemory::MapShared(*fd, bytes, MapAccess::kReadWrite).ok()) << "a client could write";
  struct stat info {};
  ASSERT_EQ(::fstat(*fd, &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), bytes);
  EXPECT_EQ(static_cast<uint64_t>(info.st_blocks) * 512, bytes);
  EXPECT_EQ(store_.allocated_bytes(), bytes);
}

TEST_F(ArenaStoreTest, AReaderSeesWrittenBytesAndTheNewEpoch) {
  const MappedMemory reader = MapAsReader();
  const Place place = SlotOf(kSpec, 3, 9);
  auto out = store_.BeginWrite(place, bounce_);
  ASSERT_TRUE(out.ok());
  ASSERT_EQ(out->size(), kSpec.slot_bytes);
  std::memset(out->data(), 0x5A, out->size());
  ASSERT_TRUE(store_.FinishWrite(place, *io_, *out, 4096, {}).ok());

  uint64_t epoch = 0;
  std::memcpy(&epoch, reader.data() + 3 * 8, 8);
  EXPECT_EQ(epoch, 9u);
  EXPECT_EQ(store_.ReadEpoch(kSpec.id, 3).value(), 9u);
  EXPECT_EQ(store_.ReadEpoch(kSpec.id, 2).value(), 0u);
  EXPECT_EQ(reader.span()[place.offset], std::byte{0x5A});
  EXPECT_EQ(reader.span()[place.offset - 1], std::byte{0}) << "the slot before";
  const auto read = store_.Read(place, *io_, bounce_);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->data(), out->data()) << "host media are read in place";
}

TEST_F(ArenaStoreTest, AReaderThatSeesNewBytesFindsTheNewEpoch) {
  const MappedMemory reader = MapAsReader();
  constexpr uint64_t kRounds = 2000;
  std::atomic<bool> go{false};
  std::thread writer([&] {
    while (!go) std::this_thread::yield();
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const Place place = SlotOf(kSpec, 0, round);
      const auto out = store_.BeginWrite(place, bounce_);
      auto* word = reinterpret_cast<uint64_t*>(out->data() + 128);
      std::atomic_ref<uint64_t>(*word).store(round, std::memory_order_relaxed);
    }
  });
  auto* epoch = reinterpret_cast<uint64_t*>(reader.data());
  auto* word = reinterpret_cast<uint64_t*>(reader.data() + ArenaHeaderBytes(kSpec.slots) + 128);
  go = true;
  uint64_t seen = 0, torn_reads = 0;
  while (seen < kRounds) {
    seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_acquire);
    torn_reads += __atomic_load_n(epoch, __ATOMIC_RELAXED) < seen ? 1 : 0;
  }
  writer.join();
  EXPECT_EQ(torn_reads, 0u) << "new bytes under an old epoch";
}

TEST_F(ArenaStoreTest, APlaceOfAnEarlierEpochIsStale) {
  ASSERT_TRUE(store_.BeginWrite(SlotOf(kSpec, 1, 5), bounce_).ok());
  EXPECT_EQ(store_.Read(SlotOf(kSpec, 1, 4), *io_, bounce_).status().code(), Code::kStale);
  EXPECT_EQ(store_.BeginWrite(SlotOf(kSpec, 1, 4), bounce_).status().code(), Code::kStale);
  EXPECT_TRUE(store_.BeginWrite(SlotOf(kSpec, 1, 5), bounce_).ok()) << "the same write, tried again";
}

TEST_F(ArenaStoreTest, RefusesPlacesThatAreNoSlots) {
  Place place = SlotOf(kSpec, 0, 1);
  place.offset += 4096;
  EXPECT_EQ(store_.BeginWrite(place, bounce_).status().code(), Code::kInvalidArgument);
  place = SlotOf(kSpec, kSpec.slots, 1);
  EXPECT_EQ(store_.BeginWrite(place, bounce_).status().code(), Code::kInvalidArgument);
  place = SlotOf(kSpec, 0, 1);
  place.bytes += 4096;
  EXPECT_EQ(store_.Read(place, *io_, bounce_).status().code(), Code::kInvalidArgument);
  place.container = 99;
  EXPECT_EQ(store_.Read(place, *io_, bounce_).status().code(), Code::kNotFound);
}

TEST_F(ArenaStoreTest, DestroyGivesTheMemoryBackAndForgetsTheArena) {
  store_.Destroy(kSpec.id);
  EXPECT_EQ(store_.allocated_bytes(), 0u);
  EXPECT_EQ(store_.Descriptor(kSpec.id).status().code(), Code::kNotFound);
  EXPECT_EQ(store_.ReadEpoch(kSpec.id, 0).status().code(), Code::kNotFound);
  store_.Destroy(kSpec.id);
}

TEST_F(ArenaStoreTest, RefusesSpecsThatCannotBe) {
  EXPECT_EQ(store_.Create(kSpec).code(), Code::kAlreadyExists);
  ArenaSpec spec = kSpec;
  spec.id = {8};
  spec.slots = 0;
  EXPECT_EQ(store_.Create(spec).code(), Code::kInvalidArgument);
  spec.slots = 1;
  spec.slot_bytes = 5000;
  EXPECT_EQ(store_.Create(spec).code(), Code::kInvalidArgument);
  spec.slots = 0xFFFFFFFF;
  spec.slot_bytes = uint64_t{1} << 62;
  EXPECT_EQ(store_.Create(spec).code(), Code::kInvalidArgument);
  EXPECT_EQ(store_.allocated_bytes(), ArenaBytes(kSpec.slots, kSpec.slot_bytes));
}

}  // namespace
}  // namespace kvtier
