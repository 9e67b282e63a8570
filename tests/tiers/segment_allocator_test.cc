#include "tiers/segment_allocator.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kSegment = 64 * kKiB;
constexpr TierId kTier{2};

bool Any(uint32_t) {
  return true;
}

TEST(SegmentAllocator, AppendsRecordsBehindTheHeader) {
  SegmentAllocator allocator(kTier, kSegment, 2);
  const std::optional<Place> first = allocator.Append(8 * kKiB, 1);
  const std::optional<Place> second = allocator.Append(4 * kKiB, 2);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->offset, kColdSegmentHeaderBytes);
  EXPECT_EQ(second->offset, kColdSegmentHeaderBytes + 8 * kKiB);
  EXPECT_EQ(first->epoch, 1u);
  EXPECT_EQ(second->container, first->container);
  EXPECT_EQ(allocator.live_bytes(), 12 * kKiB);
}

TEST(SegmentAllocator, OpensTheNextSegmentWhenARecordDoesNotFit) {
  SegmentAllocator allocator(kTier, kSegment, 2);
  const std::optional<Place> first = allocator.Append(40 * kKiB, 1);
  const std::optional<Place> second = allocator.Append(40 * kKiB, 2);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->container, second->container);
  EXPECT_GT(second->epoch, first->epoch);
  EXPECT_FALSE(allocator.Append(40 * kKiB, 3).has_value());
  EXPECT_FALSE(allocator.CouldFit(kSegment));
}

TEST(SegmentAllocator, ASegmentTakesNoMoreRecordsThanItMayHoweverSmall) {
  SegmentAllocator allocator(kTier, kSegment, 2, 3);
  for (uint32_t owner = 1; owner <= 6; ++owner) {
    const std::optional<Place> place = allocator.Append(4 * kKiB, owner);
    ASSERT_TRUE(place);
    EXPECT_EQ(place->container, (owner - 1) / 3);
    allocator.Release(*place);  // dead ones count until the segment is recycled
    EXPECT_EQ(allocator.NeedsSegment(4 * kKiB, ColdPart::kBase), owner % 3 == 0);
  }
  EXPECT_FALSE(allocator.Append(4 * kKiB, 7).has_value());
  allocator.BeginRecycle(0);
  allocator.Recycled(0, true);
  EXPECT_TRUE(allocator.Append(4 * kKiB, 8).has_value());
  allocator.CheckInvariants();
}

TEST(SegmentAllocator, ASegmentThatCannotBeOpenedIsNeitherFilledNorAVictim) {
  SegmentAllocator allocator(kTier, kSegment, 2);
  allocator.Recover({.number = 0, .unread = true, .unopened = true});
  EXPECT_FALSE(allocator.Victim(Any).has_value());
  EXPECT_EQ(allocator.Append(40 * kKiB, 1)->container, 1u);
  EXPECT_FALSE(allocator.Append(40 * kKiB, 2).has_value());
  allocator.CheckInvariants();
}

TEST(SegmentAllocator, TheVictimHasTheLeastLiveBytesAndIsTheOldestOfEquals) {
  SegmentAllocator allocator(kTier, kSegment, 4);
  std::vector<Place> places;
  for (uint32_t i = 0; i < 8; ++i) places.push_back(*allocator.Append(28 * kKiB, i));
  EXPECT_FALSE(allocator.Append(60 * kKiB, 8).has_value());  // seals the last one too
  EXPECT_EQ(allocator.Victim(Any), places[0].container);
  allocator.Release(places[5]);
  EXPECT_EQ(allocator.Victim(Any), places[5].container);
  const uint32_t not_this = places[5].container;
  EXPECT_EQ(allocator.Victim([not_this](uint32_t segment) { return segment != not_this; }),
            places[0].container);
}

TEST(SegmentAllocator, EachPartHasItsOwnStream) {
  SegmentAllocator allocator(kTier, kSegment, 3);
  const Place base = *allocator.Append(8 * kKiB, 1);
  EXPECT_TRUE(allocator.NeedsSegment(8 * kKiB, ColdPart::kVTail));
  const Place v_tail = *allocator.Append(8 * kKiB, 1, ColdPart::kVTail);
  EXPECT_FALSE(allocator.NeedsSegment(8 * kKiB, ColdPart::kVTail));
  const Place k_tail = *allocator.Append(8 * kKiB, 1, ColdPart::kKTail);
  EXPECT_EQ(v_tail.part, ColdPart::kVTail);
  EXPECT_EQ(allocator.PartOf(k_tail.container), ColdPart::kKTail);
  EXPECT_NE(base.container, v_tail.container);
  EXPECT_NE(k_tail.container, v_tail.container);
  EXPECT_EQ(allocator.Append(8 * kKiB, 2)->container, base.container);
  EXPECT_EQ(allocator.live_bytes(ColdPart::kBase), 16 * kKiB);
  EXPECT_EQ(allocator.live_bytes(ColdPart::kKTail), 8 * kKiB);
  // Tails go while their segment is open; bases do not.
  EXPECT_FALSE(allocator.Victim(Any).has_value());
  EXPECT_EQ(allocator.Victim(Any, ColdPart::kVTail), v_tail.container);
  allocator.Release(v_tail);
  allocator.BeginRecycle(v_tail.container);
  allocator.CheckInvariants();
  EXPECT_FALSE(allocator.Append(8 * kKiB, 3, ColdPart::kVTail).has_value());
  allocator.Recycled(v_tail.container, true);
  EXPECT_EQ(allocator.Append(60 * kKiB, 3)->container, v_tail.container);  // any stream's
  allocator.CheckInvariants();
}

TEST(SegmentAllocator, GoesOnInTheStreamThatWasRecovered) {
  SegmentAllocator allocator(kTier, kSegment, 4);
  allocator.Recover({.number = 0, .sequence = 5, .used_bytes = 16 * kKiB, .part = ColdPart::kKTail});
  allocator.Recover({.number = 1, .sequence = 6, .used_bytes = kColdSegmentHeaderBytes});
  allocator.Recover(
      {.number = 2, .sequence = 7, .used_bytes = 16 * kKiB});  // dead records of nobody knows what
  EXPECT_EQ(allocator.Append(8 * kKiB, 1)->container, 1u);
  EXPECT_EQ(allocator.Append(8 * kKiB, 1, ColdPart::kKTail)->container, 0u);
  EXPECT_EQ(allocator.Append(8 * kKiB, 1, ColdPart::kVTail)->container, 3u);
  EXPECT_EQ(allocator.Victim(Any), 2u);
  allocator.CheckInvariants();
}

TEST(SegmentAllocator, ARecycledSegmentIsUsedAgainUnderItsNewSequence) {
  SegmentAllocator allocator(kTier, kSegment, 1);
  const std::optional<Place> place = allocator.Append(40 * kKiB, 1);
  EXPECT_FALSE(allocator.Append(40 * kKiB, 2).has_value());
  allocator.Release(*place);
  const uint64_t sequence = allocator.BeginRecycle(place->container);
  EXPECT_GT(sequence, place->epoch);
  EXPECT_TRUE(allocator.Records(place->container).empty());
  EXPECT_FALSE(allocator.Append(40 * kKiB, 2).has_value());
  allocator.Recycled(place->container, true);
  const std::optional<Place> again = allocator.Append(40 * kKiB, 2);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->epoch, sequence);
  allocator.CheckInvariants();
}

TEST(SegmentAllocator, AFailedRecycleLeavesAVictim) {
  SegmentAllocator allocator(kTier, kSegment, 1);
  const std::optional<Place> place = allocator.Append(40 * kKiB, 1);
  EXPECT_FALSE(allocator.Append(40 * kKiB, 2).has_value());
  allocator.Release(*place);
  allocator.BeginRecycle(place->container);
  allocator.RecycleFailed(place->container);
  EXPECT_EQ(allocator.Victim(Any), place->container);
  allocator.CheckInvariants();
}

TEST(SegmentAllocator, GoesOnBehindWhatWasRecovered) {
  SegmentAllocator allocator(kTier, kSegment, 4);
  allocator.Recover({.number = 0, .sequence = 5, .used_bytes = kSegment, .part = ColdPart::kBase});
  allocator.Recover({.number = 1, .sequence = 7, .used_bytes = 16 * kKiB, .part = ColdPart::kBase});
  allocator.Recover({.number = 2, .sequence = 0, .used_bytes = kSegment});  // damaged
  allocator.Recover({.number = 9, .sequence = 3, .used_bytes = kSegment});  // above the limit
  const Place known{.tier = kTier, .container = 1, .offset = 4 * kKiB, .bytes = 8 * kKiB, .epoch = 7};
  EXPECT_TRUE(allocator.Knows(known));
  Place unknown = known;
  unknown.epoch = 6;
  EXPECT_FALSE(allocator.Knows(unknown));
  allocator.RecoverRecord(known, 1);
  const std::optional<Place> next = allocator.Append(8 * kKiB, 2);
  EXPECT_EQ(next->container, 1u);
  EXPECT_EQ(next->offset, 16 * kKiB);
  EXPECT_EQ(next->epoch, 7u);
  EXPECT_EQ(allocator.Victim(Any), 2u);  // nothing lives in the damaged one
  while (const std::optional<Place> place = allocator.Append(40 * kKiB, 3)) EXPECT_GE(place->epoch, 7u);
  allocator.CheckInvariants();
}

/// Else dead segments would not be seen, and what lives would have to go.
TEST(SegmentAllocator, S40_AfterARestartOnlyTheNewestSegmentGoesOnAndTheOthersAreVictims) {
  SegmentAllocator allocator(kTier, kSegment, 4);
  allocator.Recover(
      {.number = 0, .sequence = 8, .used_bytes = 56 * kKiB, .part = ColdPart::kBase});  // newest, in use
  allocator.Recover({.number = 1,
                     .sequence = 5,
                     .used_bytes = 60 * kKiB,
                     .part = ColdPart::kBase});  // was sealed: no room for a record
  allocator.Recover(
      {.number = 2, .sequence = 7, .used_bytes = 60 * kKiB, .part = ColdPart::kBase});     // likewise
  allocator.Recover({.number = 3, .sequence = 6, .used_bytes = kColdSegmentHeaderBytes});  // recycled, unused
  const auto recover = [&](uint32_t number, uint64_t sequence, uint64_t offset) {
    allocator.RecoverRecord(
        {.tier = kTier, .container = number, .offset = offset, .bytes = 8 * kKiB, .epoch = sequence}, number);
  };
  recover(0, 8, 4 * kKiB);
  recover(2, 7, 4 * kKiB);
  EXPECT_EQ(allocator.fresh_segments(), 1u);
  EXPECT_EQ(allocator.Victim(Any), 1u) << "nothing lives in it";
  EXPECT_EQ(allocator.Append(8 * kKiB, 10)->container, 0u);
  const std::optional<Place> next = allocator.Append(8 * kKiB, 11);
  EXPECT_EQ(next->container, 3u);
  EXPECT_EQ(next->epoch, 6u);
  EXPECT_EQ(allocator.Victim(Any), 1u);
  allocator.CheckInvariants();
}

TEST(SegmentAllocatorTest, S42_AFullDiskLeavesTheSegmentsThatHaveFiles) {
  SegmentAllocator allocator(TierId{2}, 64 * 1024, 4);
  const Place first = *allocator.Append(32 * 1024, 1);
  allocator.Made(first);
  const Place second = *allocator.Append(40 * 1024, 2);
  ASSERT_NE(second.container, first.container);
  EXPECT_TRUE(allocator.NoSpaceFor(second));
  allocator.Release(second);
  allocator.CheckInvariants();
  EXPECT_FALSE(allocator.Append(32 * 1024, 3).has_value()) << "no segment without a file is opened";
  EXPECT_TRUE(allocator.CouldFit(4096));
  // The one that has a file can be used again.
  allocator.Release(first);
  ASSERT_EQ(allocator.Victim([](uint32_t) { return true; }), first.container);
  allocator.BeginRecycle(first.container);
  allocator.Recycled(first.container, true);
  EXPECT_EQ(allocator.Append(32 * 1024, 4)->container, first.container);
  allocator.TryToGrow();
  EXPECT_FALSE(allocator.shrunk());
  EXPECT_EQ(allocator.fresh_segments(), 3u);
  allocator.CheckInvariants();
}

TEST(SegmentAllocatorTest, AFullDiskIsNotWhyAWriteToAFileFails) {
  SegmentAllocator allocator(TierId{2}, 64 * 1024, 2);
  const Place place = *allocator.Append(4096, 1);
  allocator.Made(place);
  EXPECT_FALSE(allocator.NoSpaceFor(place));
  EXPECT_FALSE(allocator.shrunk());
}

TEST(SegmentAllocatorTest, ASegmentSetAsideTooEarlyIsKept) {
  SegmentAllocator allocator(TierId{2}, 64 * 1024, 2);
  const Place failed = *allocator.Append(4096, 1), good = *allocator.Append(4096, 2);
  ASSERT_EQ(failed.container, good.container);
  EXPECT_TRUE(allocator.NoSpaceFor(failed));
  allocator.Made(good);
  allocator.Release(failed);
  allocator.CheckInvariants();
  allocator.TryToGrow();
  allocator.CheckInvariants();
  allocator.Release(good);
  EXPECT_EQ(allocator.Victim([](uint32_t) { return true; }), good.container);
}

TEST(SegmentAllocatorTest, S42_AFullDiskTakesTheOpenSegmentOfEachStreamThatHasNoFile) {
  SegmentAllocator allocator(TierId{2}, 64 * 1024, 4);
  const Place base = *allocator.Append(4096, 1), tail = *allocator.Append(4096, 1, ColdPart::kKTail);
  allocator.Made(base);
  EXPECT_TRUE(allocator.NoSpaceFor(tail));
  allocator.Release(tail);
  allocator.CheckInvariants();
  EXPECT_FALSE(allocator.Append(4096, 2, ColdPart::kKTail).has_value());
  EXPECT_EQ(allocator.Append(4096, 2)->container, base.container);
  // A segment set aside goes to whichever stream needs it.
  allocator.TryToGrow();
  const Place other = *allocator.Append(4096, 2, ColdPart::kVTail);
  allocator.Seal(other);
  allocator.CheckInvariants();
  EXPECT_NE(allocator.Append(4096, 3, ColdPart::kVTail)->container, other.container);
}

}  // namespace
}  // namespace kvtier
