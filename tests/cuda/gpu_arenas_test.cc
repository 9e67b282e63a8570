// What GPU arenas promise besides what every medium does (tests/tiers/medium_conformance_test.cc).
#include "tiers/cuda/gpu_arenas.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <thread>

#include "tests/cuda/fake_machine.h"
#include "tests/support/arena_slot.h"
#include "tests/support/blocks.h"
#include "tiers/move.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSlotBytes = uint64_t{256} << 10;
constexpr uint32_t kSlots = 4;
constexpr uint64_t kArenaBytes = ArenaBytes(kSlots, kSlotBytes);

class GpuArenasTest : public FakeMachineTest {
 protected:
  void SetUp() override {
    FakeMachineTest::SetUp();
    io_ = MakeBlockIo(BlockIoKind::kSync).value();
    scratch_.io = io_.get();
    Open({.capacity_bytes = 3 * kArenaBytes, .concurrent_calls = 2});
  }
  void TearDown() override {
    arenas_.reset();
    device_.reset();
    FakeMachineTest::TearDown();
  }
  void Open(const GpuArenasOptions& options) {
    device_ = CudaDevice::Make(0, clock_).value();
    arenas_ = std::make_unique<GpuArenas>(*device_, options);
  }
  static ArenaSpec Spec(uint32_t id) {
    return {.id = {id}, .tier = {0}, .tenant = {1}, .slots = kSlots, .slot_bytes = kSlotBytes};
  }
  Status Put(uint32_t number, const Place& place, std::span<const std::byte> raw) {
    MoveOrder order;
    order.identity = MakeIdentity(number);
    order.staged = StagedSource{.keep = nullptr, .raw = raw};
    order.target = place;
    order.target_medium = arenas_.get();
    order.codec = FindCodec(CodecId::kRaw16);
    MoveOutcome outcome;
    return MoveBlock(order, scratch_, outcome);
  }
  Status Verify(uint32_t number, const Place& place) {
    MoveOutcome outcome;
    return VerifyBlock(MakeIdentity(number), place, {}, *arenas_, scratch_, outcome);
  }

  SteadyClock clock_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<GpuArenas> arenas_;
  std::unique_ptr<BlockIo> io_;
  MoveScratch scratch_;
};

TEST_F(GpuArenasTest, AnArenaIsAccountedFromCreateToDestroy) {
  ASSERT_TRUE(arenas_->Create(Spec(1)).ok());
  EXPECT_EQ(arenas_->allocated_bytes(), kArenaBytes);
  EXPECT_EQ(arenas_->Create(Spec(1)).code(), Code::kAlreadyExists);
  ASSERT_TRUE(arenas_->Create(Spec(2)).ok());
  ASSERT_TRUE(arenas_->Create(Spec(3)).ok());
  EXPECT_EQ(arenas_->Create(Spec(4)).code(), Code::kResourceExhausted);
  arenas_->Destroy({2});
  EXPECT_EQ(arenas_->allocated_bytes(), 2 * kArenaBytes);
  EXPECT_TRUE(arenas_->Create(Spec(4)).ok());
}

TEST_F(GpuArenasTest, AGpuThatIsFullGivesNothingAndKeepsNothing) {
  fake_cuda::Reset({.device_bytes = kArenaBytes + (8 << 20)});
  Open({.capacity_bytes = uint64_t{1} << 30, .concurrent_calls = 1});
  ArenaSpec large = Spec(1);
  large.slots = 1000;
  EXPECT_EQ(arenas_->Create(large).code(), Code::kResourceExhausted);
  EXPECT_EQ(arenas_->allocated_bytes(), 0u);
  EXPECT_TRUE(arenas_->Create(Spec(1)).ok());
}

TEST_F(GpuArenasTest, ABlockMovesFromTheGpuToHostMemoryAndIsEncodedOnTheWay) {
  ArenaStore host;
  ASSERT_TRUE(host.Create(Spec(7)).ok());
  ASSERT_TRUE(arenas_->Create(Spec(1)).ok());
  const std::vector<std::byte> raw = RandomRaw(SmallShape(), 5);
  const Place hot = SlotOf(Spec(1), 0), warm = SlotOf(Spec(7), 0);
  ASSERT_TRUE(Put(5, hot, raw).ok());
  MoveOrder order;
  order.identity = MakeIdentity(5);
  order.source = hot;
  order.source_medium = arenas_.get();
  order.target = warm;
  order.target_medium = &host;
  order.codec = FindCodec(CodecId::kKv4p);
  MoveOutcome outcome;
  ASSERT_TRUE(MoveBlock(order, scratch_, outcome).ok());
  AlignedBuffer bounce;
  const auto stored = host.Read(warm, *io_, bounce);
  ASSERT_TRUE(stored.ok());
  const auto want = EncodeOwned(*FindCodec(CodecId::kKv4p), MakeIdentity(5), raw);
  EXPECT_TRUE(std::ranges::equal(stored->first(want->bytes.size()), want->bytes));
}

TEST_F(GpuArenasTest, SeveralPlacesAreReadInOneGo) {
  ASSERT_TRUE(arenas_->Create(Spec(1)).ok());
  std::array<AlignedBuffer, 3> bounces;
  std::array<Medium::PartRead, 3> reads;
  for (uint32_t i = 0; i < reads.size(); ++i) {
    const Place place = SlotOf(Spec(1), i);
    ASSERT_TRUE(Put(i, place, RandomRaw(SmallShape(), i)).ok());
    reads[i].place = place;
    reads[i].bounce = &bounces[i];
  }
  ++reads[1].place.epoch;  // one of them is stale: it costs itself only
  const uint64_t records = fake_cuda::Calls("cudaEventRecord");
  arenas_->ReadParts(reads, *io_);
  EXPECT_EQ(fake_cuda::Calls("cudaEventRecord"), records + 1);
  EXPECT_EQ(reads[1].bytes.status().code(), Code::kStale);
  for (const uint32_t i : {0u, 2u}) {
    ASSERT_TRUE(reads[i].bytes.ok());
    EXPECT_TRUE(MatchIdentity(ParseImage(*reads[i].bytes).value(), MakeIdentity(i)).ok());
  }
}

TEST_F(GpuArenasTest, ASlotsEpochIsOnTheDeviceBeforeItsBytesChange) {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    arenas_.reset();
    device_.reset();
    fake_cuda::Reset({.seed = seed});
    Open({.capacity_bytes = kArenaBytes, .concurrent_calls = 1});
    ASSERT_TRUE(arenas_->Create(Spec(1)).ok());
    Place place = SlotOf(Spec(1), 2);
    ASSERT_TRUE(Put(1, place, RandomRaw(SmallShape(), 1)).ok());
    ++place.epoch;
    // The copy that was to bring the bytes is the second: it fails, and the epoch has changed.
    fake_cuda::Fail({.function = "cudaMemcpyAsync", .after = 1, .error = cudaErrorInvalidValue});
    ASSERT_FALSE(Put(2, place, RandomRaw(SmallShape(), 2)).ok());
    --place.epoch;
    EXPECT_EQ(Verify(1, place).code(), Code::kStale) << seed;
    ++place.epoch;
    EXPECT_EQ(Verify(2, place).code(), Code::kDataLoss) << seed;  // still the block before, under its name
  }
}

TEST_F(GpuArenasTest, MoreThreadsThanAnnouncedAreRefused) {
  Open({.capacity_bytes = kArenaBytes, .concurrent_calls = 0});
  EXPECT_EQ(arenas_->Create(Spec(1)).code(), Code::kResourceExhausted);
  EXPECT_EQ(arenas_->allocated_bytes(), 0u);
}

TEST_F(GpuArenasTest, AnyCallMayFailAndNothingIsLeftBehind) {
  uint64_t failures = 0;
  for (uint64_t after = 0;; ++after) {
    arenas_.reset();
    device_.reset();
    fake_cuda::Reset({.seed = after + 1});
    Open({.capacity_bytes = kArenaBytes, .concurrent_calls = 1});
    fake_cuda::Fail({.after = after, .error = cudaErrorInvalidValue});
    const Status created = arenas_->Create(Spec(1));
    const Place place = SlotOf(Spec(1), 0);
    const Status put = created.ok() ? Put(1, place, RandomRaw(SmallShape(), 1)) : created;
    const Status verified = put.ok() ? Verify(1, place) : put;
    fake_cuda::FailNoMore();
    if (verified.ok()) break;
    ++failures;
    // Where a record failed nobody knows what the device still does; else all is as before.
    const Status again = created.ok() ? Status::Ok() : arenas_->Create(Spec(1));
    EXPECT_EQ(again.ok(), device_->Usable().ok() || created.ok())
        << "call " << after << ": " << again.ToString();
  }
  EXPECT_GT(failures, 10u);
}

TEST_F(GpuArenasTest, ALostGpuFailsAtOnceAndSaysWhy) {
  ASSERT_TRUE(arenas_->Create(Spec(1)).ok());
  const Place place = SlotOf(Spec(1), 0);
  ASSERT_TRUE(Put(1, place, RandomRaw(SmallShape(), 1)).ok());
  fake_cuda::FailWork(0, cudaErrorECCUncorrectable);
  EXPECT_EQ(Verify(1, place).code(), Code::kUnavailable);
  const uint64_t calls = fake_cuda::Calls("");
  EXPECT_THAT(Verify(1, place).message(), HasSubstr("GPU 0 is lost"));
  EXPECT_EQ(Put(2, place, RandomRaw(SmallShape(), 2)).code(), Code::kUnavailable);
  EXPECT_EQ(arenas_->Create(Spec(2)).code(), Code::kUnavailable);
  EXPECT_EQ(fake_cuda::Calls(""), calls);
  arenas_.reset();
  device_.reset();
  fake_cuda::Reset({});
}

TEST_F(GpuArenasTest, TwoThreadsMoveBlocksAtOnce) {
  ASSERT_TRUE(arenas_->Create(Spec(1)).ok());
  ASSERT_TRUE(arenas_->Create(Spec(2)).ok());
  const auto work = [&](uint32_t arena) {
    const auto io = MakeBlockIo(BlockIoKind::kSync).value();
    MoveScratch scratch;
    scratch.io = io.get();
    for (uint32_t number = 0; number < 2 * kSlots; ++number) {
      Place place = SlotOf(Spec(arena), number % kSlots);
      place.epoch += number;
      const std::vector<std::byte> raw = RandomRaw(SmallShape(), number);
      MoveOrder order;
      order.identity = MakeIdentity(100 * arena + number);
      order.staged = StagedSource{.keep = nullptr, .raw = raw};
      order.target = place;
      order.target_medium = arenas_.get();
      order.codec = FindCodec(CodecId::kKv8);
      MoveOutcome outcome;
      ASSERT_TRUE(MoveBlock(order, scratch, outcome).ok());
      ASSERT_TRUE(VerifyBlock(order.identity, place, {}, *arenas_, scratch, outcome).ok());
    }
  };
  std::thread other(work, 2);
  work(1);
  other.join();
}

}  // namespace
}  // namespace kvtier
