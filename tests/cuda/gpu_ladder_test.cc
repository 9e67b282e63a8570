// The engine with a tier on a GPU, on real bytes: what readers get is what was put, or nothing.
#include <cuda_runtime_api.h>

#include <map>

#include "daemon/engine/engine.h"
#include "tests/cuda/fake_machine.h"
#include "tests/support/blocks.h"
#include "tests/support/engine_harness.h"
#include "tiers/cuda/gpu_jobs.h"

namespace kvtier {
namespace {

constexpr TierId kGpu{0}, kWarm{1};
constexpr uint64_t kGpuBytes = uint64_t{1} << 20, kWarmBytes = uint64_t{4} << 20;

ModelSpec Spec() {
  ModelSpec spec;
  spec.model_id = "on the GPU";
  spec.layers = 3;
  spec.kv_heads = 2;
  spec.k_dim = spec.v_dim = 64;
  spec.tokens_per_block = 64;
  spec.boost_channels = DefaultBoost(spec.k_dim);
  return spec;
}

class GpuLadderTest : public FakeMachineTest, public EngineEvents {
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
    engine_.reset();
    gpu_jobs_.reset();
    gpu_.reset();
    device_.reset();
  }
  void Open(uint64_t seed) {
    Close();
    fake_cuda::Reset({.seed = seed});
    device_ = CudaDevice::Make(0, clock_).value();
    gpu_ = std::make_unique<GpuArenas>(*device_,
                                       GpuArenasOptions{.capacity_bytes = kGpuBytes, .concurrent_calls = 1});
    gpu_->EncodeWith(
        GpuEncoder::Make(*device_, {.image_bytes = uint64_t{1} << 20, .layers_per_launch = 64}).value());
    gpu_jobs_ = std::make_unique<GpuJobs>(*device_, *gpu_, [](const auto& call) { return call(); });
    host_ = std::make_unique<ArenaStore>();
    metrics_ = std::make_unique<Metrics>();
    scratch_.io = io_.get();
    EngineOptions options;
    options.tiers = {TierOnGpu("hot", kGpuBytes, CodecId::kRaw16),
                     HostTier("warm", kWarmBytes, CodecId::kKv4p)};
    options.tiers[0].medium = gpu_.get();
    options.tiers[1].medium = host_.get();
    std::array<Engine::DeviceQueues, kMaxTiers> devices;
    devices[0].moves = &gpu_queue_;
    engine_ = Engine::Make(std::move(options),
                           {.commands = commands_,
                            .completions = completions_,
                            .jobs = host_queue_,
                            .devices = devices,
                            .events = *this,
                            .metrics = *metrics_},
                           {})
                  .value();
    ASSERT_TRUE(Call<OpenedSession>(OpenSession{session_, "uid:1", {}}).ok());
    model_ = Call<RegisteredModel>(RegisterModel{session_, Spec(), {}}).value().model;
    raw_.clear();
    next_ = 1;
  }

  void OnArenaPublished(const ArenaSpec& arena) override { EXPECT_EQ(arena.tier, kWarm); }
  void OnSessionArena(SessionId, const ArenaSpec&) override {}
  void OnArenaRetired(ArenaId arena, TenantId) override {
    ASSERT_TRUE(commands_.TryPush(
        {.deadline = now_ + std::chrono::hours(1), .body = ArenaUnmapped{session_, arena}}));
  }

  /// Steps until nothing moves any more.
  void Settle() {
    for (int i = 0; i < 100000; ++i) {
      const TimePoint due = engine_->Step(now_);
      const bool ran = RunJobs();
      if (!ran && due > now_ && completions_.size() == 0 && commands_.size() == 0) return;
    }
    FAIL() << "the engine never comes to rest";
  }
  bool RunJobs() {
    std::vector<Job> jobs;
    std::vector<Completion> ended;
    while (auto job = host_queue_.TryPop()) ended.push_back(OnHost(*job));
    while (jobs.size() < kMaxGpuJobs) {
      auto job = gpu_queue_.TryPop();
      if (!job) break;
      const auto* move = std::get_if<MoveJob>(&job->work);
      if (move != nullptr && move->order.target.tier == kGpu) last_on_gpu_ = move->order.target;
      jobs.push_back(*std::move(job));
    }
    gpu_jobs_->Run(jobs, ended, nullptr);
    for (Completion& completion : ended) EXPECT_TRUE(completions_.TryPush(std::move(completion)));
    return !ended.empty();
  }
  Completion OnHost(const Job& job) {
    Completion done{.id = job.id, .status = {}, .outcome = {}};
    if (const auto* create = std::get_if<CreateArenaJob>(&job.work)) {
      done.status = host_->Create(create->spec);
    } else if (const auto* destroy = std::get_if<DestroyArenaJob>(&job.work)) {
      host_->Destroy(destroy->id);
    } else {
      done.status = MoveBlock(std::get<MoveJob>(job.work).order, scratch_, done.outcome);
    }
    return done;
  }
  template <typename T, typename Body>
  Result<T> Call(Body body) {
    std::optional<Result<T>> answer;
    body.reply = [&answer](Result<T> result) { answer.emplace(std::move(result)); };
    EXPECT_TRUE(commands_.TryPush({.deadline = now_ + std::chrono::seconds(1), .body = std::move(body)}));
    Settle();
    KVTIER_CHECK(answer.has_value());
    return *std::move(answer);
  }

  static PutBlock Block(uint64_t number) {
    PutBlock block;
    block.key = MakeKey(number);
    block.parent = MakeKey(number - 1);
    block.first_position = number * Spec().tokens_per_block;
    block.tokens = static_cast<uint16_t>(Spec().tokens_per_block);
    return block;
  }
  static BlockShape Shape(uint64_t number) {
    return ShapeOf(Spec(), Block(number).first_position, Block(number).tokens);
  }
  PutReply PutBlocks(uint64_t first, uint64_t count) {
    Put put;
    put.session = session_;
    put.model = model_;
    put.ticket = TicketId{next_++};
    for (uint64_t number = first; number < first + count; ++number) {
      PutBlock block = Block(number);
      auto& raw = raw_[number] = RandomRaw(Shape(number), static_cast<uint32_t>(number));
      block.source = {.keep = nullptr, .raw = raw};
      put.blocks.push_back(std::move(block));
    }
    return Call<PutReply>(std::move(put)).value();
  }
  /// How many of the blocks a reader gets, each checked against what was put, or its encoding by the host.
  uint64_t Read(uint64_t first, uint64_t count) {
    Acquire acquire;
    acquire.session = session_;
    acquire.model = model_;
    acquire.lease = LeaseId{next_++};
    for (uint64_t number = first; number < first + count; ++number) acquire.keys.push_back(MakeKey(number));
    const LeaseId lease = acquire.lease;
    const AcquireReply reply = Call<AcquireReply>(std::move(acquire)).value();
    for (size_t i = 0; i < reply.run.size(); ++i) ExpectRight(first + i, reply.run[i]);
    if (reply.run.empty()) return 0;
    EXPECT_TRUE(Call<Done>(Release{session_, lease, {}, {}}).ok());
    return reply.run.size();
  }
  void ExpectRight(uint64_t number, const AcquiredBlock& block) {
    ASSERT_EQ(block.place.tier, kWarm);
    AlignedBuffer bounce;
    const auto bytes = host_->Read(block.place, *io_, bounce);
    ASSERT_TRUE(bytes.ok());
    const Result<ImageView> image = ParseImage(*bytes);
    ASSERT_TRUE(image.ok() && VerifyImage(*image).ok()) << number;
    BlockIdentity identity = image->identity;
    identity.shape = Shape(number);
    ASSERT_EQ(identity.key, MakeKey(number));
    const auto want = EncodeOwned(*image->codec, identity, raw_.at(number));
    EXPECT_TRUE(std::ranges::equal(image->bytes, want->bytes)) << number;
    served_[image->codec->id] += 1;
  }
  void FlipABit(const Place& place) {
    AlignedBuffer read, written;
    const std::span<const std::byte> image = gpu_->Read(place, *io_, read).value();
    const std::span<std::byte> out = gpu_->BeginWrite(place, written).value();
    std::ranges::copy(image, out.begin());
    out[out.size() / 2] ^= std::byte{16};
    ASSERT_TRUE(gpu_->FinishWrite(place, *io_, out, out.size(), {}).ok());
  }
  uint64_t Moved(TierId from, TierId to) { return metrics_->moves[from.value][to.value].blocks.Get(); }
  size_t Hits(uint64_t first, uint64_t count) {
    Lookup lookup;
    lookup.session = session_;
    lookup.model = model_;
    for (uint64_t number = first; number < first + count; ++number) lookup.keys.push_back(MakeKey(number));
    return Call<LookupReply>(std::move(lookup)).value().run.size();
  }

  SteadyClock clock_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  std::unique_ptr<BlockIo> io_ = MakeBlockIo(BlockIoKind::kSync).value();
  MoveScratch scratch_;
  BoundedQueue<Command> commands_{1024};
  BoundedQueue<Completion> completions_{1024};
  BoundedQueue<Job> host_queue_{1024}, gpu_queue_{1024};
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<GpuArenas> gpu_;
  std::unique_ptr<GpuJobs> gpu_jobs_;
  std::unique_ptr<ArenaStore> host_;
  std::unique_ptr<Engine> engine_;
  const SessionId session_{1};
  ModelId model_;
  std::map<uint64_t, std::vector<std::byte>> raw_;
  std::map<CodecId, uint64_t> served_;
  Place last_on_gpu_;  ///< that a block was moved to
  uint64_t next_ = 1;
};

TEST_F(GpuLadderTest, WhatIsPutOnTheGpuIsReadFromHostMemoryAndWhatLeavesItIsEncodedThere) {
  for (uint64_t seed = 1; seed <= kOrders / 10; ++seed) {
    Open(seed);
    served_.clear();
    for (const PutOutcome& block : PutBlocks(1, 4).blocks) {
      EXPECT_EQ(block.code, Code::kOk);
      EXPECT_EQ(block.tier, kGpu);
    }
    EXPECT_EQ(Read(1, 4), 4u);
    EXPECT_EQ(served_[CodecId::kRaw16], 4u);
    for (uint64_t first = 5; first <= 21; first += 4) PutBlocks(first, 4);
    EXPECT_GT(Moved(kGpu, kWarm), 8u);
    EXPECT_LE(gpu_->allocated_bytes(), kGpuBytes);
    EXPECT_EQ(metrics_->codec_encode_bytes.Get(), 0u);
    for (uint64_t first = 1; first <= 21; first += 4) EXPECT_EQ(Read(first, 4), 4u);  // as leases allow
    EXPECT_GT(served_[CodecId::kKv4p], 4u);
    engine_->CheckInvariants();
    ASSERT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << "seed " << seed;
  }
}

TEST_F(GpuLadderTest, AFlippedBitInTheGpusMemoryIsAMissWhetherReadOrDemoted) {
  for (const bool is_read : {true, false}) {
    Open(3);
    PutBlocks(1, 1);
    FlipABit(last_on_gpu_);
    if (is_read) {
      EXPECT_EQ(Read(1, 1), 0u);
    } else {
      EXPECT_EQ(Call<uint64_t>(AdminDemote{kGpu, 1, {}}).value(), 0u);
    }
    EXPECT_EQ(metrics_->quarantined_blocks.Get(), 1u);
    EXPECT_EQ(Hits(1, 1), 0u);
    EXPECT_EQ(PutBlocks(1, 1).blocks[0].code, Code::kOk);
    EXPECT_EQ(Read(1, 1), 1u);
  }
}

TEST_F(GpuLadderTest, AGpuThatIsLostCostsItsBlocksAndNothingElse) {
  PutBlocks(1, 4);
  EXPECT_EQ(Read(1, 1), 1u);
  fake_cuda::FailWork(0, cudaErrorECCUncorrectable);
  EXPECT_EQ(Read(1, 4), 1u);  // that one is in host memory by now
  Settle();
  EXPECT_EQ(Hits(1, 4), 1u);
  const uint64_t calls = fake_cuda::Calls("");
  for (const PutOutcome& block : PutBlocks(2, 6).blocks) {
    EXPECT_EQ(block.code, Code::kOk);
    EXPECT_EQ(block.tier, kWarm);
  }
  EXPECT_EQ(Read(1, 7), 7u);
  EXPECT_EQ(fake_cuda::Calls(""), calls);
  engine_->CheckInvariants();
  Close();
  fake_cuda::Reset({});
}

TEST_F(GpuLadderTest, WhateverCallFailsNothingWrongIsReadAndTheLadderGoesOn) {
  uint64_t failures = 0;
  for (uint64_t after = 0;; after += 11) {
    Open(after + 1);
    fake_cuda::Fail({.after = after, .error = cudaErrorInvalidValue});
    PutBlocks(1, 6);
    PutBlocks(7, 6);
    Read(1, 12);
    fake_cuda::FailNoMore();
    const bool failed = metrics_->tier[0].write_errors.Get() + metrics_->tier[0].read_errors.Get() > 0;
    now_ += std::chrono::seconds(2);  // the circuit's time
    for (const PutOutcome& block : PutBlocks(20, 4).blocks) EXPECT_EQ(block.code, Code::kOk) << after;
    EXPECT_EQ(Read(20, 4), 4u) << after;
    engine_->CheckInvariants();
    ASSERT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << "call " << after;
    failures += failed;
    if (!failed && fake_cuda::Calls("") < after) break;
  }
  EXPECT_GT(failures, 5u);
}

}  // namespace
}  // namespace kvtier
