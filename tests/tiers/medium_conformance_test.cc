// What every medium promises (tiers/medium.h), for each medium there is. A new medium adds one line to
// kMedia.
#include <gtest/gtest.h>

#include "tests/support/arena_slot.h"
#include "tests/support/blocks.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/tiers/cxl_fixture.h"
#include "tiers/arena_store.h"
#include "tiers/cuda/gpu_arenas.h"
#include "tiers/move.h"

namespace kvtier {
namespace {

/// A medium with room for blocks of SmallShape, and its places.
class MediumUnderTest {
 public:
  virtual ~MediumUnderTest() = default;
  virtual Medium& medium() = 0;
  /// A place of its own for an image of `image_bytes`.
  virtual Place Next(uint64_t image_bytes) = 0;
};

class HostUnderTest final : public MediumUnderTest {
 public:
  HostUnderTest() {
    spec_ = {.id = {1}, .tier = {0}, .tenant = {1}, .slots = 16, .slot_bytes = uint64_t{256} << 10};
    const Status created = store_.Create(spec_);
    KVTIER_CHECK(created.ok());
  }
  Medium& medium() override { return store_; }
  Place Next(uint64_t /*image_bytes*/) override {
    const uint32_t slot = next_++;
    KVTIER_CHECK(slot < spec_.slots);
    return SlotOf(spec_, slot);
  }

 private:
  ArenaStore store_;
  ArenaSpec spec_;
  uint32_t next_ = 0;
};

class ColdUnderTest final : public MediumUnderTest {
 public:
  ColdUnderTest() : store_(ColdStore::Make(TestColdOptions(folder_.path())).value()) {
    const auto recovered = store_->Recover();
    KVTIER_CHECK(recovered.ok());
  }
  Medium& medium() override { return *store_; }
  Place Next(uint64_t image_bytes) override { return allocator_.Next(image_bytes); }

 private:
  TempFolder folder_;
  std::unique_ptr<ColdStore> store_;
  TestAllocator allocator_;
};

/// A CXL store on a file.
class CxlUnderTest final : public MediumUnderTest {
 public:
  CxlUnderTest() : store_(MakeCxlStore(folder_.path()).value()) {
    const auto recovered = store_->Recover();
    KVTIER_CHECK(recovered.ok());
  }
  Medium& medium() override { return *store_; }
  Place Next(uint64_t image_bytes) override { return allocator_.Next(image_bytes); }

 private:
  TempFolder folder_;
  std::unique_ptr<ColdStore> store_;
  TestAllocator allocator_;
};

/// The memory of a GPU that is fake.
class GpuUnderTest final : public MediumUnderTest {
 public:
  GpuUnderTest()
      : machine_(),
        device_(CudaDevice::Make(0, clock_).value()),
        arenas_(*device_, {.capacity_bytes = uint64_t{8} << 20, .concurrent_calls = 1}) {
    const Status created = arenas_.Create(spec_);
    KVTIER_CHECK(created.ok());
  }
  Medium& medium() override { return arenas_; }
  Place Next(uint64_t /*image_bytes*/) override {
    const uint32_t slot = next_++;
    KVTIER_CHECK(slot < spec_.slots);
    return SlotOf(spec_, slot);
  }

 private:
  struct FakeMachine {
    FakeMachine() { fake_cuda::Reset({}); }
    ~FakeMachine() { EXPECT_EQ(fake_cuda::Violations(), std::vector<std::string>()); }
  };

  FakeMachine machine_;
  SteadyClock clock_;
  std::unique_ptr<CudaDevice> device_;
  GpuArenas arenas_;
  const ArenaSpec spec_{
      .id = {1}, .tier = {0}, .tenant = {1}, .slots = 16, .slot_bytes = uint64_t{256} << 10};
  uint32_t next_ = 0;
};

struct MediumCase {
  const char* name;
  std::unique_ptr<MediumUnderTest> (*make)();
};
const MediumCase kMedia[] = {
    {"Host", []() -> std::unique_ptr<MediumUnderTest> { return std::make_unique<HostUnderTest>(); }},
    {"Cold", []() -> std::unique_ptr<MediumUnderTest> { return std::make_unique<ColdUnderTest>(); }},
    {"Gpu", []() -> std::unique_ptr<MediumUnderTest> { return std::make_unique<GpuUnderTest>(); }},
    {"Cxl", []() -> std::unique_ptr<MediumUnderTest> { return std::make_unique<CxlUnderTest>(); }},
};

class MediumConformance : public testing::TestWithParam<MediumCase> {
 protected:
  void SetUp() override {
    io_ = MakeBlockIo(BlockIoKind::kAuto).value();
    scratch_.io = io_.get();
    under_test_ = GetParam().make();
  }
  Medium& medium() { return under_test_->medium(); }

  Status Put(uint32_t number, const Place& place, CodecId codec, std::span<const std::byte> raw) {
    MoveOrder order;
    order.identity = MakeIdentity(number, SmallShapeFor(*FindCodec(codec)));
    order.staged = StagedSource{.keep = nullptr, .raw = raw};
    order.target = place;
    order.target_medium = &medium();
    order.codec = FindCodec(codec);
    MoveOutcome outcome;
    return MoveBlock(order, scratch_, outcome);
  }
  Status Verify(uint32_t number, const Place& place, const BlockShape& shape = SmallShape()) {
    MoveOutcome outcome;
    return VerifyBlock(MakeIdentity(number, shape), place, {}, medium(), scratch_, outcome);
  }
  std::vector<std::byte> ReadAll(const Place& place, uint64_t image_bytes) {
    AlignedBuffer bounce;
    const auto bytes = medium().Read(place, *io_, bounce);
    KVTIER_CHECK(bytes.ok() && bytes->size() >= image_bytes);
    return CopyOf(bytes->first(image_bytes));
  }

  std::unique_ptr<BlockIo> io_;
  MoveScratch scratch_;
  std::unique_ptr<MediumUnderTest> under_test_;
};

TEST_P(MediumConformance, AnImageComesBackByteForByteInEveryCodec) {
  uint32_t number = 1;
  for (const Codec* codec : AllCodecs()) {
    const BlockShape shape = SmallShapeFor(*codec);
    const std::vector<std::byte> raw = RandomRaw(shape, number);
    const auto want = EncodeOwned(*codec, MakeIdentity(number, shape), raw);
    ASSERT_TRUE(want.ok());
    const Place place = under_test_->Next(want->bytes.size());
    const Status put = Put(number, place, codec->id, raw);
    ASSERT_TRUE(put.ok()) << codec->name << ": " << put.ToString();
    EXPECT_TRUE(Verify(number, place, shape).ok()) << codec->name;
    EXPECT_EQ(ReadAll(place, want->bytes.size()), CopyOf(want->bytes)) << codec->name;
    ++number;
  }
}

TEST_P(MediumConformance, NeighboursDoNotTouchEachOther) {
  std::vector<Place> places;
  for (uint32_t number = 1; number <= 4; ++number) {
    const std::vector<std::byte> raw = RandomRaw(SmallShape(), number);
    places.push_back(
        under_test_->Next(EncodeOwned(*FindCodec(CodecId::kKv4p), MakeIdentity(number), raw)->bytes.size()));
    ASSERT_TRUE(Put(number, places.back(), CodecId::kKv4p, raw).ok());
  }
  for (uint32_t number = 1; number <= 4; ++number)
    EXPECT_TRUE(Verify(number, places[number - 1]).ok()) << number;
}

TEST_P(MediumConformance, AnotherBlocksPlaceIsNotTheBlock) {
  const std::vector<std::byte> raw = RandomRaw(SmallShape(), 1);
  const Place place = under_test_->Next(RawBlockBytes(SmallShape()) + 4096);
  ASSERT_TRUE(Put(1, place, CodecId::kRaw16, raw).ok());
  EXPECT_EQ(Verify(2, place).code(), Code::kDataLoss);
}

TEST_P(MediumConformance, S12_AReadWithAnotherEpochIsRefused) {
  const std::vector<std::byte> raw = RandomRaw(SmallShape(), 1);
  Place place = under_test_->Next(RawBlockBytes(SmallShape()) + 4096);
  ASSERT_TRUE(Put(1, place, CodecId::kRaw16, raw).ok());
  ++place.epoch;
  AlignedBuffer bounce;
  EXPECT_FALSE(medium().Read(place, *io_, bounce).ok());
}

TEST_P(MediumConformance, AnImageLargerThanItsPlaceIsRefusedAndSaysWhatItNeeds) {
  const std::vector<std::byte> raw = RandomRaw(SmallShape(), 1);
  Place place = under_test_->Next(4096);
  place.bytes = 8192;
  MoveOrder order;
  order.identity = MakeIdentity(1);
  order.staged = StagedSource{.keep = nullptr, .raw = raw};
  order.target = place;
  order.target_medium = &medium();
  order.codec = FindCodec(CodecId::kRaw16);
  MoveOutcome outcome;
  EXPECT_EQ(MoveBlock(order, scratch_, outcome).code(), Code::kOutOfRange);
  EXPECT_GT(outcome.needed_bytes, raw.size());
}

INSTANTIATE_TEST_SUITE_P(Media, MediumConformance, testing::ValuesIn(kMedia),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier
