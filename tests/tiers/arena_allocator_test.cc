#include "tiers/arena_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr TierId kTier{1};
constexpr SlotClass kSmall{TenantId{1}, 8192};
constexpr SlotClass kLarge{TenantId{1}, 65536};

ArenaId Ready(ArenaAllocator& allocator, uint32_t id, const SlotClass& slot_class) {
  EXPECT_TRUE(allocator.Plan(ArenaId{id}, slot_class).has_value());
  allocator.Created(ArenaId{id});
  return ArenaId{id};
}

TEST(ArenaAllocator, HasNoSlotsBeforeAnArenaIsReady) {
  ArenaAllocator allocator(kTier, kMiB);
  EXPECT_FALSE(allocator.Allocate(kSmall, 0).has_value());
  ASSERT_TRUE(allocator.Plan(ArenaId{1}, kSmall).has_value());
  EXPECT_FALSE(allocator.Allocate(kSmall, 0).has_value());
  EXPECT_GT(allocator.arena_bytes(), 0u);  // but it is accounted
  allocator.Created(ArenaId{1});
  EXPECT_TRUE(allocator.Allocate(kSmall, 0).has_value());
}

TEST(ArenaAllocator, ASixteenthOfTheTierIsAnArena) {
  ArenaAllocator allocator(kTier, kMiB);
  const std::optional<ArenaSpec> small = allocator.Plan(ArenaId{1}, kSmall);
  EXPECT_EQ(small->slots, 8u);
  EXPECT_EQ(small->slot_bytes, 8192u);
  EXPECT_EQ(allocator.Plan(ArenaId{2}, kLarge)->slots, 1u);
}

TEST(ArenaAllocator, NeverPlansMoreThanTheCapacityAndUsesItsEnd) {
  ArenaAllocator allocator(kTier, kMiB);
  uint32_t id = 0;
  while (allocator.Plan(ArenaId{++id}, kSmall)) continue;
  EXPECT_LE(allocator.arena_bytes(), kMiB);
  EXPECT_LT(allocator.unplanned_bytes(), ArenaBytes(1, kSmall.slot_bytes));
  EXPECT_FALSE(allocator.CouldFit(kMiB));
}

TEST(ArenaAllocator, PlansAnArenaWhereverOneSlotFits) {
  constexpr SlotClass kTiny{TenantId{1}, 4096};
  uint32_t fitted = 0;
  for (uint64_t capacity = 64 * kMiB; capacity < 64 * kMiB + kLarge.slot_bytes; capacity += 4096) {
    ArenaAllocator allocator(kTier, capacity);
    uint32_t id = 0;
    while (allocator.Plan(ArenaId{++id}, kLarge)) continue;
    const bool fits = allocator.unplanned_bytes() >= ArenaBytes(1, kTiny.slot_bytes);
    EXPECT_EQ(allocator.Plan(ArenaId{++id}, kTiny).has_value(), fits) << allocator.unplanned_bytes();
    fitted += fits ? 1 : 0;
  }
  EXPECT_GT(fitted, 0u);
}

TEST(ArenaAllocator, KnowsWhichReadyArenasAreEmpty) {
  ArenaAllocator allocator(kTier, kMiB);
  EXPECT_TRUE(allocator.Plan(ArenaId{1}, kSmall).has_value());
  EXPECT_TRUE(allocator.empty_arenas().empty()) << "not ready";
  allocator.Created(ArenaId{1});
  Ready(allocator, 2, kLarge);
  EXPECT_EQ(allocator.empty_arenas(), (std::set<uint32_t>{1, 2}));
  const Place first = *allocator.Allocate(kSmall, 7), second = *allocator.Allocate(kSmall, 8);
  EXPECT_EQ(allocator.empty_arenas(), std::set<uint32_t>{2});
  allocator.Free(first);
  EXPECT_EQ(allocator.empty_arenas(), std::set<uint32_t>{2});
  allocator.Drain(ArenaId{1});
  allocator.Free(second);
  EXPECT_EQ(allocator.empty_arenas(), std::set<uint32_t>{2}) << "drained";
  allocator.Undrain(ArenaId{1});
  EXPECT_EQ(allocator.empty_arenas(), (std::set<uint32_t>{1, 2}));
  allocator.Retire(ArenaId{2});
  EXPECT_EQ(allocator.empty_arenas(), std::set<uint32_t>{1});
  allocator.CheckInvariants();
}

TEST(ArenaAllocator, SlotsDoNotOverlapAndStartBehindTheEpochs) {
  ArenaAllocator allocator(kTier, kMiB);
  Ready(allocator, 1, kSmall);
  std::set<uint64_t> offsets;
  while (const std::optional<Place> place = allocator.Allocate(kSmall, 0)) {
    EXPECT_GE(place->offset, ArenaHeaderBytes(8));
    EXPECT_LE(place->offset + place->bytes, ArenaBytes(8, kSmall.slot_bytes));
    EXPECT_EQ(place->epoch, 1u);
    EXPECT_TRUE(offsets.insert(place->offset).second);
  }
  EXPECT_EQ(offsets.size(), 8u);
  EXPECT_EQ(*std::next(offsets.begin()) - *offsets.begin(), kSmall.slot_bytes);
}

TEST(ArenaAllocator, AReusedSlotHasTheNextEpoch) {
  ArenaAllocator allocator(kTier, 100 * 1024);
  Ready(allocator, 1, {TenantId{1}, 65536});
  for (uint64_t epoch = 1; epoch < 10; ++epoch) {
    const std::optional<Place> place = allocator.Allocate({TenantId{1}, 65536}, 7);
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->epoch, epoch);
    allocator.Free(*place);
  }
}

TEST(ArenaAllocator, TenantsDoNotShareArenas) {
  ArenaAllocator allocator(kTier, kMiB);
  Ready(allocator, 1, kSmall);
  EXPECT_FALSE(allocator.Allocate({TenantId{2}, kSmall.slot_bytes}, 0).has_value());
}

TEST(ArenaAllocator, ADrainedArenaGivesNothingUntilItIsReadyAgain) {
  ArenaAllocator allocator(kTier, kMiB);
  const ArenaId id = Ready(allocator, 1, kSmall);
  const std::optional<Place> place = allocator.Allocate(kSmall, 3);
  allocator.Drain(id);
  EXPECT_FALSE(allocator.Allocate(kSmall, 3).has_value());
  allocator.Undrain(id);
  EXPECT_TRUE(allocator.Allocate(kSmall, 3).has_value());
  allocator.Free(*place);
  EXPECT_EQ(allocator.FreeSlots(kSmall), 7u);
}

TEST(ArenaAllocator, ARetiredArenaIsAccountedUntilItIsDestroyed) {
  ArenaAllocator allocator(kTier, kMiB);
  const ArenaId id = Ready(allocator, 1, kSmall);
  const uint64_t bytes = allocator.arena_bytes();
  allocator.Retire(id);
  EXPECT_EQ(allocator.arena_bytes(), bytes);
  allocator.Destroyed(id);
  EXPECT_EQ(allocator.arena_bytes(), 0u);
  EXPECT_EQ(allocator.unplanned_bytes(), kMiB);
}

TEST(ArenaAllocator, CountsAgreeThroughRandomUse) {
  std::mt19937 rng(5);
  ArenaAllocator allocator(kTier, kMiB);
  std::vector<Place> places;
  uint32_t next_id = 0;
  for (int step = 0; step < 20000; ++step) {
    const SlotClass slot_class{TenantId{static_cast<uint32_t>(rng() % 2)}, 4096u << (rng() % 4)};
    switch (rng() % 5) {
      case 0:
        if (allocator.Plan(ArenaId{++next_id}, slot_class)) {
          if (rng() % 8 == 0) {
            allocator.CreateFailed(ArenaId{next_id});
          } else {
            allocator.Created(ArenaId{next_id});
          }
        }
        break;
      case 1:
      case 2:
        if (const auto place = allocator.Allocate(slot_class, static_cast<uint32_t>(step)))
          places.push_back(*place);
        break;
      case 3:
        if (places.empty()) break;
        std::swap(places[rng() % places.size()], places.back());
        allocator.Free(places.back());
        places.pop_back();
        break;
      default:
        for (const auto& [id, arena] : allocator.arenas()) {
          if (!arena.empty() || arena.state != ArenaState::kReady) continue;
          allocator.Retire(arena.spec.id);
          allocator.Destroyed(ArenaId{id});
          break;
        }
    }
    if (step % 100 == 0) allocator.CheckInvariants();
  }
  for (const Place& place : places) allocator.Free(place);
  EXPECT_EQ(allocator.used_bytes(), 0u);
  allocator.CheckInvariants();
}

}  // namespace
}  // namespace kvtier
