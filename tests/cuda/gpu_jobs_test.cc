// Jobs of a tier on a GPU, several at once.
#include "tiers/cuda/gpu_jobs.h"

#include <cuda_runtime_api.h>

#include "tests/cuda/fake_machine.h"
#include "tests/support/arena_slot.h"
#include "tests/support/blocks.h"

namespace kvtier {
namespace {

constexpr uint32_t kBlocks = 5;
constexpr uint64_t kSlotBytes = uint64_t{256} << 10;

class GpuJobsTest : public FakeMachineTest {
 protected:
  void SetUp() override {
    FakeMachineTest::SetUp();
    Open(1);
  }
  void TearDown() override {
    Close();
    FakeMachineTest::TearDown();
  }
  void Close() {
    jobs_.reset();
    arenas_.reset();
    device_.reset();
  }
  /// A machine whose GPU has an arena, as has host memory.
  void Open(uint64_t seed) {
    Close();
    fake_cuda::Reset({.seed = seed});
    device_ = CudaDevice::Make(0, clock_).value();
    arenas_ = std::make_unique<GpuArenas>(
        *device_, GpuArenasOptions{.capacity_bytes = uint64_t{8} << 20, .concurrent_calls = 1});
    arenas_->EncodeWith(
        GpuEncoder::Make(*device_, {.image_bytes = uint64_t{1} << 20, .layers_per_launch = 64}).value());
    host_ = std::make_unique<ArenaStore>();
    jobs_ = std::make_unique<GpuJobs>(*device_, *arenas_, [](const auto& call) { return call(); });
    ASSERT_TRUE(host_->Create(Spec(2, kBlocks)).ok());
    std::vector<Job> create;  // a list of initializers copies: g++ 12 with sanitizers warns of that
    create.push_back({.id = {next_id_++}, .work = CreateArenaJob{Spec(1, kBlocks)}});
    ASSERT_TRUE(Run(std::move(create))[0].status.ok());
    raw_.clear();
    for (uint32_t i = 0; i < kBlocks; ++i) raw_.push_back(RandomRaw(SmallShape(), i));
  }
  static ArenaSpec Spec(uint32_t id, uint32_t slots) {
    return {.id = {id}, .tier = {0}, .tenant = {1}, .slots = slots, .slot_bytes = kSlotBytes};
  }
  static Place Hot(uint32_t i) { return SlotOf(Spec(1, kBlocks), i); }
  static Place Warm(uint32_t i) { return SlotOf(Spec(2, kBlocks), i); }

  Job Put(uint32_t number, CodecId codec = CodecId::kRaw16) {
    MoveOrder order;
    order.identity = MakeIdentity(number);
    order.staged = StagedSource{.keep = nullptr, .raw = raw_[number]};
    order.target = Hot(number);
    order.target_medium = arenas_.get();
    order.codec = FindCodec(codec);
    return {.id = {next_id_++}, .work = MoveJob{order}};
  }
  Job Down(uint32_t number, CodecId codec) {
    MoveOrder order;
    order.identity = MakeIdentity(number);
    order.source = Hot(number);
    order.source_medium = arenas_.get();
    order.target = Warm(number);
    order.target_medium = host_.get();
    order.codec = FindCodec(codec);
    return {.id = {next_id_++}, .work = MoveJob{order}};
  }
  Job Up(uint32_t number) {
    Job job = Down(number, CodecId::kKv4p);
    MoveOrder& order = std::get<MoveJob>(job.work).order;
    std::swap(order.source, order.target);
    std::swap(order.source_medium, order.target_medium);
    ++order.target.epoch;
    return job;
  }
  std::vector<Completion> Run(std::vector<Job> jobs) {
    std::vector<Completion> ended;
    jobs_->Run(jobs, ended, nullptr);
    EXPECT_TRUE(jobs.empty());
    return ended;
  }
  template <typename Make>
  std::vector<Completion> RunEach(const Make& make) {
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < kBlocks; ++i) jobs.push_back(make(i));
    return Run(std::move(jobs));
  }
  /// What stands in the host's slot is what the host makes of the block.
  void ExpectWarm(uint32_t number, CodecId codec) {
    AlignedBuffer bounce;
    const auto stored = host_->Read(Warm(number), *io_, bounce);
    ASSERT_TRUE(stored.ok());
    const auto want = EncodeOwned(*FindCodec(codec), MakeIdentity(number), raw_[number]);
    ASSERT_TRUE(want.ok());
    EXPECT_TRUE(std::ranges::equal(stored->first(want->bytes.size()), want->bytes)) << number;
  }
  /// Flips a bit of what stands on the GPU.
  void Damage(uint32_t number, uint64_t offset) {
    AlignedBuffer bounce, written;
    const std::span<const std::byte> image = arenas_->Read(Hot(number), *io_, bounce).value();
    const std::span<std::byte> out = arenas_->BeginWrite(Hot(number), written).value();
    std::ranges::copy(image, out.begin());
    out[offset] ^= std::byte{4};
    ASSERT_TRUE(arenas_->FinishWrite(Hot(number), *io_, out, out.size(), {}).ok());
  }

  SteadyClock clock_;
  std::unique_ptr<BlockIo> io_ = MakeBlockIo(BlockIoKind::kSync).value();
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<GpuArenas> arenas_;
  std::unique_ptr<ArenaStore> host_;
  std::unique_ptr<GpuJobs> jobs_;
  std::vector<std::vector<std::byte>> raw_;
  uint64_t next_id_ = 1;
};

TEST_F(GpuJobsTest, BlocksGoUpTogetherAndComeDownEncodedInOneLaunch) {
  for (uint64_t seed = 1; seed <= kOrders / 4; ++seed) {
    Open(seed);
    const uint64_t records = fake_cuda::Calls("cudaEventRecord");
    for (const Completion& put : RunEach([&](uint32_t i) { return Put(i); })) {
      ASSERT_TRUE(put.status.ok()) << put.status.ToString();
    }
    EXPECT_LE(fake_cuda::Calls("cudaEventRecord") - records, 2u);
    const uint64_t launches = fake_cuda::Calls("cudaLaunchKernel");
    for (const Completion& down : RunEach([&](uint32_t i) { return Down(i, CodecId::kKv4p); })) {
      ASSERT_TRUE(down.status.ok()) << down.status.ToString();
      EXPECT_EQ(down.outcome.codec, CodecId::kKv4p);
      EXPECT_EQ(down.outcome.encoded_bytes, 0u);  // not by the host
    }
    EXPECT_EQ(fake_cuda::Calls("cudaLaunchKernel") - launches, 2u);  // checksums, images
    for (uint32_t i = 0; i < kBlocks; ++i) ExpectWarm(i, CodecId::kKv4p);
    ASSERT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << "seed " << seed;
  }
}

TEST_F(GpuJobsTest, Kv8ComesDownEncodedFurtherAndARawBlockForAReaderAsItIs) {
  RunEach([&](uint32_t i) { return Put(i, i == 0 ? CodecId::kKv8 : CodecId::kRaw16); });
  const auto ended = Run({Down(0, CodecId::kKv4p), Down(1, CodecId::kRaw16), Down(2, CodecId::kKv2p)});
  for (const Completion& down : ended) ASSERT_TRUE(down.status.ok()) << down.status.ToString();
  EXPECT_EQ(ended[0].outcome.codec, CodecId::kKv4p);
  ExpectWarm(1, CodecId::kRaw16);
  ExpectWarm(2, CodecId::kKv2p);
}

TEST_F(GpuJobsTest, AnEncodedBlockGoesUpAndComesDownAsItIs) {
  RunEach([&](uint32_t i) { return Put(i); });
  RunEach([&](uint32_t i) { return Down(i, CodecId::kKv4p); });
  for (const Completion& up : RunEach([&](uint32_t i) { return Up(i); })) {
    ASSERT_TRUE(up.status.ok()) << up.status.ToString();
    EXPECT_EQ(up.outcome.codec, CodecId::kKv4p);
  }
}

TEST_F(GpuJobsTest, ABlockThatIsDamagedOnTheGpuIsNeverEncoded) {
  uint64_t found = 0;
  for (const uint64_t offset : {8u, 100u, 200u, 300u, 5000u, 40000u}) {
    for (const CodecId codec : {CodecId::kKv4p, CodecId::kKv2p, CodecId::kKv8, CodecId::kRaw16}) {
      Open(offset);
      RunEach([&](uint32_t i) { return Put(i); });
      Damage(1, offset);
      const auto ended = RunEach([&](uint32_t i) { return Down(i, codec); });
      for (uint32_t i = 0; i < kBlocks; ++i) {
        EXPECT_EQ(ended[i].status.ok(), i != 1) << "offset " << offset << ": " << ended[i].status.ToString();
      }
      const Code code = ended[1].status.code();
      EXPECT_TRUE(code == Code::kDataLoss || code == Code::kUnimplemented) << offset;
      ++found;
    }
  }
  EXPECT_EQ(found, 24u);
}

TEST_F(GpuJobsTest, WithoutTheEncoderTheHostEncodes) {
  RunEach([&](uint32_t i) { return Put(i); });
  arenas_->EncodeWith(nullptr);
  for (const Completion& down : RunEach([&](uint32_t i) { return Down(i, CodecId::kKv4p); })) {
    ASSERT_TRUE(down.status.ok());
    EXPECT_GT(down.outcome.encoded_bytes, 0u);
  }
  for (uint32_t i = 0; i < kBlocks; ++i) ExpectWarm(i, CodecId::kKv4p);
}

TEST_F(GpuJobsTest, ABlockTooLargeForTheEncoderIsEncodedByTheHost) {
  RunEach([&](uint32_t i) { return Put(i); });
  arenas_->EncodeWith(GpuEncoder::Make(*device_, {.image_bytes = 8192, .layers_per_launch = 64}).value());
  const auto ended = Run({Down(0, CodecId::kKv4p)});
  ASSERT_TRUE(ended[0].status.ok());
  EXPECT_GT(ended[0].outcome.encoded_bytes, 0u);
  ExpectWarm(0, CodecId::kKv4p);
}

TEST_F(GpuJobsTest, ATargetThatIsTooSmallSaysWhatItNeeds) {
  RunEach([&](uint32_t i) { return Put(i); });
  Job small = Down(0, CodecId::kKv4p);
  std::get<MoveJob>(small.work).order.target.bytes = 8192;
  const auto ended = Run({small, Down(1, CodecId::kKv4p)});
  EXPECT_EQ(ended[0].status.code(), Code::kOutOfRange);
  EXPECT_GT(ended[0].outcome.needed_bytes, 8192u);
  EXPECT_TRUE(ended[1].status.ok());
}

TEST_F(GpuJobsTest, AnyCallMayFailAndEveryJobIsAnsweredRightOrNotAtAll) {
  uint64_t failures = 0;
  for (uint64_t after = 0;; ++after) {
    Open(after + 1);
    for (const Completion& put : RunEach([&](uint32_t i) { return Put(i); })) ASSERT_TRUE(put.status.ok());
    fake_cuda::Fail({.after = after, .error = cudaErrorInvalidValue});
    const auto ended = RunEach([&](uint32_t i) { return Down(i, CodecId::kKv42); });
    fake_cuda::FailNoMore();
    ASSERT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << "call " << after;
    uint64_t failed = 0, by_host = 0;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      if (ended[i].status.ok()) {
        ExpectWarm(i, CodecId::kKv42);
        by_host += ended[i].outcome.encoded_bytes > 0;
        continue;
      }
      ++failed;
      EXPECT_EQ(ended[i].status.code(), Code::kUnavailable);
      EXPECT_TRUE(ended[i].outcome.source_failed);
      EXPECT_EQ(ended[i].device_lost, !device_->Usable().ok());
    }
    if (failed + by_host == 0) break;
    ++failures;
  }
  EXPECT_GT(failures, 20u);
}

TEST_F(GpuJobsTest, ALostGpuFailsEveryJobAndSaysThatItIsLost) {
  RunEach([&](uint32_t i) { return Put(i); });
  fake_cuda::FailWork(1, cudaErrorIllegalAddress);
  for (const Completion& down : RunEach([&](uint32_t i) { return Down(i, CodecId::kKv4p); })) {
    EXPECT_EQ(down.status.code(), Code::kUnavailable);
    EXPECT_TRUE(down.device_lost);
  }
  const auto put = Run({Put(0)});
  EXPECT_TRUE(put[0].device_lost);
  EXPECT_TRUE(Run({Job{.id = {1}, .work = CreateArenaJob{Spec(9, 1)}}})[0].device_lost);
  EXPECT_FALSE(Run({Job{.id = {1}, .work = DestroyArenaJob{{1}}}})[0].device_lost);
  Close();
  fake_cuda::Reset({});
}

}  // namespace
}  // namespace kvtier
