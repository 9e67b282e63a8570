#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "client/src/arena_map.h"
#include "client/src/attend.h"
#include "tests/support/blocks.h"
#include "tiers/arena_store.h"
#include "tiers/base/memfd.h"
#include "tiers/cxl_format.h"

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

/// Two segments in a file, the second in its use number 9.
class StoreMapTest : public ArenaMapTest {
 protected:
  static constexpr uint64_t kSegmentBytes = 512 << 10, kBytes = kCxlMetaBytes + 2 * kSegmentBytes;
  static constexpr uint64_t kFirst = CxlSegmentOffset(1, kSegmentBytes);

  StoreMapTest() {
    offer_.set_arena(UINT32_MAX);
    offer_.set_bytes(kBytes);
    offer_.set_segments(2);
    offer_.set_segment_bytes(kSegmentBytes);
    offer_.set_first_segment(kCxlMetaBytes);
    offer_.set_store_uuid(std::string(16, 'u'));
    WriteHeader('u', 9);
  }
  void WriteHeader(char uuid, uint64_t sequence) {
    StoreUuid bytes;
    bytes.fill(static_cast<std::byte>(uuid));
    const SegmentHeader header = MakeSegmentHeader(bytes, 1, sequence, kSegmentBytes);
    std::memcpy(memory_.data() + kFirst, &header, sizeof(header));
  }

  UniqueFd file_ = std::move(MakeMemoryFile("store", kBytes)).value();
  MappedMemory memory_ = MappedMemory::MapShared(file_.get(), kBytes, MapAccess::kReadWrite).value();
  v1::StoreOffer offer_;
};

TEST_F(StoreMapTest, GivesBytesOfASegmentAndNothingOutside) {
  ASSERT_TRUE(map_.AddStore(offer_, file_.get()).ok());
  const auto store = map_.Find(UINT32_MAX);
  ASSERT_NE(store, nullptr);
  memory_.data()[kFirst + 4096 + 256] = std::byte{77};
  const auto image = store->At(1, kFirst + 4096 + 256, 1000);
  ASSERT_TRUE(image.ok());
  EXPECT_EQ((*image)[0], std::byte{77});
  EXPECT_TRUE(store->At(1, kFirst + 4096 + 256, kSegmentBytes - 4096 - 256).ok());
  EXPECT_FALSE(store->At(1, kFirst + 4096 + 256, kSegmentBytes - 4096).ok()) << "beyond the segment";
  EXPECT_FALSE(store->At(0, kFirst + 4096 + 256, 1000).ok()) << "another segment's";
  EXPECT_FALSE(store->At(1, kFirst - 256, 1000).ok());
  EXPECT_FALSE(store->At(2, kFirst + kSegmentBytes, 1000).ok());
  EXPECT_FALSE(store->At(1, UINT64_MAX / 256 * 256, 1000).ok());
}

TEST_F(StoreMapTest, S12_TheSequenceOfASegmentIsItsEpochBesideTheUuidOfTheOfferAlone) {
  ASSERT_TRUE(map_.AddStore(offer_, file_.get()).ok());
  const auto store = map_.Find(UINT32_MAX);
  EXPECT_EQ(store->EpochBeforeRead(1), 9u);
  EXPECT_EQ(store->EpochAfterRead(1), 9u);
  WriteHeader('u', 10);
  EXPECT_EQ(store->EpochAfterRead(1), 10u);
  WriteHeader('v', 9);  // a store made anew in the same memory
  EXPECT_NE(store->EpochBeforeRead(1), 9u);
  EXPECT_NE(store->EpochAfterRead(1), 9u);
}

TEST_F(StoreMapTest, S12_ABlockIsStaleOnceItsSegmentIsInAnotherUse) {
  const BlockIdentity identity = MakeIdentity(1);
  const Result<OwnedImage> image =
      EncodeOwned(*FindCodec(CodecId::kKv2p), identity, RandomRaw(identity.shape, 3));
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  constexpr uint64_t kAt = kFirst + 4096 + 256;
  std::memcpy(memory_.data() + kAt, image->bytes.data(), image->bytes.size());
  ASSERT_TRUE(map_.AddStore(offer_, file_.get()).ok());
  const auto store = map_.Find(UINT32_MAX);
  const SlotGuard guard{.arena = *store, .slot = 1, .epoch = 9};
  const auto bytes = store->At(1, kAt, image->bytes.size()).value();
  const auto block = CheckBlock(bytes, identity, guard);
  ASSERT_TRUE(block.ok()) << block.status().ToString();
  const std::vector<float> q(size_t{2} * identity.shape.kv_heads * identity.shape.k_dim, 0.25f);
  AttentionQuery query;
  query.q = q.data();
  query.query_heads = 2u * identity.shape.kv_heads;
  query.scale = 0.125f;
  OwnedPartial out(query.query_heads, identity.shape.v_dim);
  EXPECT_TRUE(AttendImage(**block, 0, query, out.View(), guard).ok());
  WriteHeader('u', 10);
  EXPECT_EQ(AttendImage(**block, 0, query, out.View(), guard).status().code(), Code::kStale);
  EXPECT_EQ(CheckBlock(bytes, identity, guard).status().code(), Code::kStale);
}

TEST_F(StoreMapTest, RefusesWhatCannotBe) {
  const auto with = [&](auto change) {
    v1::StoreOffer offer = offer_;
    change(offer);
    return map_.AddStore(offer, file_.get()).code();
  };
  EXPECT_EQ(with([](auto& offer) { offer.set_segments(0); }), Code::kInvalidArgument);
  EXPECT_EQ(with([](auto& offer) { offer.set_segments(3); }), Code::kInvalidArgument);
  EXPECT_EQ(with([](auto& offer) { offer.set_segment_bytes(UINT64_MAX / 4096 * 4096); }),
            Code::kInvalidArgument);
  EXPECT_EQ(with([](auto& offer) { offer.set_segment_bytes(5000); }), Code::kInvalidArgument);
  EXPECT_EQ(with([](auto& offer) { offer.set_first_segment(kBytes + 4096); }), Code::kInvalidArgument);
  EXPECT_EQ(with([](auto& offer) { offer.set_store_uuid("short"); }), Code::kInvalidArgument);
  EXPECT_EQ(with([](auto& offer) { offer.set_bytes(kBytes + 4096); }), Code::kInvalidArgument);
  EXPECT_EQ(map_.Find(UINT32_MAX), nullptr);
  EXPECT_EQ(with([](auto&) {}), Code::kOk);
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
