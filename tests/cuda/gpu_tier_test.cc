// A tier on a GPU with its thread, as the daemon has it.
#include "tiers/cuda/gpu_tier.h"

#include <cuda_runtime_api.h>

#include "tests/cuda/fake_machine.h"
#include "tests/support/arena_slot.h"
#include "tests/support/blocks.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class GpuTierOfDaemonTest : public FakeMachineTest {
 protected:
  void TearDown() override {
    tier_.reset();
    FakeMachineTest::TearDown();
  }
  Status Open(const GpuTierOptions& options) {
    KVTIER_ASSIGN(tier_, GpuTier::Open(options, clock_));
    return Status::Ok();
  }
  Status Start() {
    return tier_->Start(
        {.jobs = jobs_, .completions = completions_, .metrics = metrics_, .on_completion = [this] {
           ++woken_;
         }});
  }
  static ArenaSpec Spec(uint32_t id) {
    return {.id = {id}, .tier = {0}, .tenant = {1}, .slots = 4, .slot_bytes = uint64_t{256} << 10};
  }
  void Push(uint64_t id, decltype(Job::work) work) {
    ASSERT_TRUE(jobs_.TryPush(Job{.id = {id}, .work = std::move(work)}));
  }
  MoveJob Put(uint32_t number) {
    MoveOrder order;
    order.identity = MakeIdentity(number);
    order.staged = StagedSource{.keep = nullptr, .raw = raw_};
    order.target = SlotOf(Spec(1), number);
    order.target_medium = &tier_->medium();
    order.codec = FindCodec(CodecId::kRaw16);
    return {order};
  }
  Completion Next() {
    std::optional<Completion> done = completions_.PopUntil(clock_.Now() + std::chrono::seconds(30));
    KVTIER_CHECK(done.has_value());
    return *std::move(done);
  }

  SteadyClock clock_;
  Metrics metrics_;
  BoundedQueue<Job> jobs_{64};
  BoundedQueue<Completion> completions_{64};
  std::atomic<uint64_t> woken_{0};
  const std::vector<std::byte> raw_ = RandomRaw(SmallShape(), 1);
  std::unique_ptr<GpuTier> tier_;
};

TEST_F(GpuTierOfDaemonTest, TakesNoMoreThanItsCapacity) {
  ASSERT_TRUE(Open({.ordinal = 0, .capacity_bytes = 32 * kMiB}).ok());
  EXPECT_EQ(tier_->facts().description, "gpu:0");
  EXPECT_LT(tier_->facts().arena_bytes, 32 * kMiB);
  EXPECT_GT(tier_->facts().arena_bytes, 24 * kMiB);
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_LE(total_bytes - free_bytes + tier_->facts().arena_bytes, 32 * kMiB);
}

TEST_F(GpuTierOfDaemonTest, DoesJobsOnItsThreadAndWhatIsQueuedBeforeItStops) {
  ASSERT_TRUE(Open({.ordinal = 0, .capacity_bytes = 32 * kMiB}).ok());
  Push(1, CreateArenaJob{Spec(1)});
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(Next().id, JobId{1});
  for (uint32_t i = 0; i < 4; ++i) Push(10 + i, Put(i));
  tier_->Stop();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(Next().status.ok());
  EXPECT_GE(woken_.load(), 2u);
  ASSERT_TRUE(Start().ok());
  Push(
      20,
      VerifyJob{
          .identity = MakeIdentity(2), .place = SlotOf(Spec(1), 2), .tails = {}, .medium = &tier_->medium()});
  EXPECT_TRUE(Next().status.ok());
  tier_->Stop();
}

TEST_F(GpuTierOfDaemonTest, SaysWhyItIsLost) {
  ASSERT_TRUE(Open({.ordinal = 0, .capacity_bytes = 32 * kMiB}).ok());
  ASSERT_TRUE(Start().ok());
  Push(1, CreateArenaJob{Spec(1)});
  ASSERT_TRUE(Next().status.ok());
  EXPECT_TRUE(tier_->Usable().ok());
  fake_cuda::FailWork(0, cudaErrorECCUncorrectable);
  Push(2, Put(0));
  const Completion done = Next();
  EXPECT_EQ(done.status.code(), Code::kUnavailable);
  EXPECT_TRUE(done.device_lost);
  EXPECT_EQ(tier_->Usable().code(), Code::kUnavailable);
  tier_.reset();
  fake_cuda::Reset({});
}

TEST_F(GpuTierOfDaemonTest, IsNotThereWithoutAGpuOrWithoutRoom) {
  EXPECT_EQ(Open({.ordinal = 1, .capacity_bytes = 32 * kMiB}).code(), Code::kNotFound);
  EXPECT_EQ(Open({.ordinal = 0, .capacity_bytes = 1 * kMiB}).code(), Code::kInvalidArgument);
  fake_cuda::Reset({.devices = 0});
  EXPECT_EQ(Open({.ordinal = 0, .capacity_bytes = 32 * kMiB}).code(), Code::kUnavailable);
  EXPECT_FALSE(fake_cuda::HasContext(0));
}

TEST_F(GpuTierOfDaemonTest, AnyCallMayFailWhileItOpensAndNothingIsLeftBehind) {
  uint64_t failures = 0;
  for (bool opens = false; !opens; ++failures) {
    fake_cuda::Reset({});
    fake_cuda::Fail({.after = failures, .error = cudaErrorInvalidValue});
    const Status opened = Open({.ordinal = 0, .capacity_bytes = 32 * kMiB});
    fake_cuda::FailNoMore();
    tier_.reset();
    ExpectClean("call " + std::to_string(failures));
    opens = opened.ok();
  }
  EXPECT_GT(failures, 10u);
}

}  // namespace
}  // namespace kvtier
