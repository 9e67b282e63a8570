#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "client/src/arena_map.h"
#include "tiers/arena_store.h"
#include "tiers/base/memfd.h"

namespace kvtier::client {
namespace {

class ArenaMapTest : public testing::Test {
 protected:
  v1::ArenaOffer Offer(uint32_t id) {
    const ArenaSpec spec{.id = ArenaId{id}, .tier = {}, .tenant = {}, .slots = 4, .slot_bytes = 8192};
    EXPECT_TRUE(store_.Create(spec).ok());
    v1::ArenaOffer offer;
    offer.set_arena(id);
    offer.set_slots(spec.slots);
    offer.set_slot_bytes(spec.slot_bytes);
    offer.set_bytes(ArenaBytes(spec.slots, spec.slot_bytes));
    return offer;
  }
  Status Add(const v1::ArenaOffer& offer) {
    return map_.Add(offer, store_.Descriptor(ArenaId{offer.arena()}).value()).status();
  }

  ArenaStore store_;
  std::vector<uint32_t> unmapped_;
  ArenaMap map_{[this](uint32_t arena) { unmapped_.push_back(arena); }};
};

TEST_F(ArenaMapTest, GivesBytesOfASlotAndNothingOutside) {
  ASSERT_TRUE(Add(Offer(1)).ok());
  const auto arena = map_.Find(1);
  ASSERT_NE(arena, nullptr);
  EXPECT_TRUE(arena->At(3, 4096 + 3 * 8192, 8192).ok());
  EXPECT_FALSE(arena->At(4, 4096, 8192).ok()) << "no such slot";
  EXPECT_FALSE(arena->At(0, 0, 8192).ok()) << "the epochs are not a slot";
  EXPECT_FALSE(arena->At(3, 4096 + 3 * 8192, 8193).ok());
  EXPECT_FALSE(arena->At(0, 4097, 64).ok());
  EXPECT_FALSE(arena->At(0, uint64_t{1} << 40, 1).ok());
  EXPECT_FALSE(arena->At(0, 4096, UINT64_MAX).ok());
}

TEST_F(ArenaMapTest, SeesTheEpochThatTheDaemonWrites) {
  ASSERT_TRUE(Add(Offer(1)).ok());
  const auto arena = map_.Find(1);
  AlignedBuffer unused;
  const Place place{
      .tier = {}, .container = 1, .slot = 2, .offset = 4096 + 2 * 8192, .bytes = 8192, .epoch = 9};
  ASSERT_TRUE(store_.BeginWrite(place, unused).ok());
  EXPECT_EQ(arena->EpochBeforeRead(2), 9u);
  EXPECT_EQ(arena->EpochAfterRead(2), 9u);
  EXPECT_EQ(arena->EpochAfterRead(1), 0u);
}

TEST_F(ArenaMapTest, RefusesFilesThatCouldBeCutOrAreTooSmall) {
  v1::ArenaOffer offer = Offer(1);
  const UniqueFd unsealed = std::move(MakeMemoryFile("unsealed", offer.bytes())).value();
  EXPECT_EQ(map_.Add(offer, unsealed.get()).status().code(), Code::kInvalidArgument);
  offer.set_bytes(offer.bytes() + 4096);
  EXPECT_EQ(Add(offer).code(), Code::kInvalidArgument);
  EXPECT_EQ(map_.Find(1), nullptr);
}

TEST_F(ArenaMapTest, AnswersAnArenaThatIsOfferedWhileSomeoneWaits) {
  const v1::ArenaOffer offer = Offer(5);
  std::thread session([&] { EXPECT_TRUE(Add(offer).ok()); });
  EXPECT_NE(map_.WaitFor(5, SteadyClock().Now() + std::chrono::seconds(60)), nullptr);
  session.join();
  EXPECT_EQ(map_.WaitFor(6, SteadyClock().Now()), nullptr);
}

TEST_F(ArenaMapTest, UnmapsARetiredArenaWhenItsLastReaderIsDone) {
  ASSERT_TRUE(Add(Offer(1)).ok());
  ASSERT_TRUE(Add(Offer(2)).ok());
  auto reading = map_.Find(1);
  map_.Retire(1);
  EXPECT_EQ(map_.Find(1), nullptr);
  EXPECT_TRUE(unmapped_.empty());
  EXPECT_EQ(reading->EpochBeforeRead(0), 0u) << "still mapped";
  reading.reset();
  EXPECT_EQ(unmapped_, std::vector<uint32_t>{1});
  map_.Retire(2);
  EXPECT_EQ(unmapped_, (std::vector<uint32_t>{1, 2}));
  map_.Retire(2);
  EXPECT_EQ(unmapped_.size(), 2u);
}

TEST_F(ArenaMapTest, LetsGoOfEverythingWhenTheSessionEnds) {
  ASSERT_TRUE(Add(Offer(1)).ok());
  std::thread session([&] { map_.Close(); });
  EXPECT_EQ(map_.WaitFor(9, SteadyClock().Now() + std::chrono::seconds(60)), nullptr);
  session.join();
  EXPECT_EQ(map_.Find(1), nullptr);
  EXPECT_TRUE(unmapped_.empty()) << "there is nobody to tell";
}

}  // namespace
}  // namespace kvtier::client
