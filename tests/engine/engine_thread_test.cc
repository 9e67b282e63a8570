#include "daemon/engine/engine_thread.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "tests/support/engine_harness.h"
#include "tiers/arena_store.h"
#include "tiers/image.h"
#include "tiers/transfer_worker.h"

namespace kvtier {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

class Silent final : public EngineEvents {
 public:
  void OnArenaPublished(const ArenaSpec&) override {}
  void OnSessionArena(SessionId, const ArenaSpec&) override {}
  void OnArenaRetired(ArenaId, TenantId) override {}
};

/// Engine, thread, workers and real memory, as in the daemon.
class EngineThreadTest : public testing::Test {
 protected:
  void SetUp() override {
    TierOptions hot = HostTier("hot", uint64_t{1} << 20, CodecId::kRaw16);
    hot.medium = &arenas_;
    TierOptions warm = HostTier("warm", uint64_t{1} << 20, CodecId::kKv4p);
    warm.medium = &arenas_;
    auto engine = Engine::Make({.tiers = {hot, warm}, .limits = {}},
                               {.commands = commands_,
                                .completions = completions_,
                                .jobs = jobs_,
                                .events = events_,
                                .metrics = metrics_},
                               {});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
    auto workers = TransferWorkers::Make(
        {.count = 2, .io = BlockIoKind::kSync, .on_completion = [this] { commands_.Wake(); }}, jobs_,
        completions_, arenas_, metrics_);
    ASSERT_TRUE(workers.ok());
    workers_ = std::move(workers).value();
    ASSERT_TRUE(workers_->Start().ok());
    thread_ = std::make_unique<EngineThread>(*engine_, commands_, clock_, metrics_);
    ASSERT_TRUE(thread_->Start().ok());
  }
  void TearDown() override {
    thread_->Stop();
    workers_->Stop();
  }

  template <typename T, typename Body>
  Result<T> Call(Body body) {
    auto answer = std::make_shared<std::promise<Result<T>>>();
    std::future<Result<T>> future = answer->get_future();
    body.reply = [answer](Result<T> result) { answer->set_value(std::move(result)); };
    KVTIER_CHECK(commands_.TryPush({.deadline = clock_.Now() + kPatience, .body = std::move(body)}));
    KVTIER_CHECK(future.wait_for(2 * kPatience) == std::future_status::ready);
    return future.get();
  }

  SteadyClock clock_;
  Metrics metrics_;
  ArenaStore arenas_;
  Silent events_;
  BoundedQueue<Command> commands_{4096};
  BoundedQueue<Completion> completions_{1024};
  BoundedQueue<Job> jobs_{1024};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TransferWorkers> workers_;
  std::unique_ptr<EngineThread> thread_;
  ModelSpec spec_ = TinyModel();
};

TEST_F(EngineThreadTest, RawBytesComeBackAsTheyWerePutWhileBlocksGoDown) {
  const SessionId session{1};
  ASSERT_TRUE(Call<OpenedSession>(OpenSession{session, "uid:1", {}}).ok());
  const ModelId model = Call<RegisteredModel>(RegisterModel{session, spec_, {}})->model;
  const auto raw_of = [this](uint64_t number) {
    std::vector<std::byte> raw(RawBlockBytes(ShapeOf(spec_, 64, 64)));
    std::mt19937 rng(static_cast<uint32_t>(number));
    for (size_t i = 0; i < raw.size(); i += 2) {
      const uint16_t value = static_cast<uint16_t>(rng() & 0x3BFF);  // finite, positive, below one
      std::memcpy(&raw[i], &value, 2);
    }
    return raw;
  };
  uint64_t exact = 0, lossy = 0;
  for (uint64_t number = 1; number <= 300; ++number) {
    auto raw = std::make_shared<std::vector<std::byte>>(raw_of(number));
    Put put;
    put.session = session;
    put.model = model;
    put.ticket = TicketId{number};
    PutBlock& block = put.blocks.emplace_back();
    block.key = MakeKey(number);
    block.parent = MakeKey(number - 1);
    block.first_position = number * 64;
    block.tokens = 64;
    block.source = {.keep = raw, .raw = *raw};
    const Result<PutReply> reply = Call<PutReply>(std::move(put));
    ASSERT_TRUE(reply.ok());
    ASSERT_EQ(reply->blocks[0].code, Code::kOk);

    Acquire acquire;
    acquire.session = session;
    acquire.model = model;
    acquire.lease = LeaseId{number};
    const uint64_t wanted = number % 3 == 0 ? 1 + number / 2 : number;
    acquire.keys = {MakeKey(wanted)};
    const Result<AcquireReply> acquired = Call<AcquireReply>(std::move(acquire));
    ASSERT_TRUE(acquired.ok());
    for (const AcquiredBlock& got : acquired->run) {
      AlignedBuffer bounce;
      const std::unique_ptr<BlockIo> io = MakeBlockIo(BlockIoKind::kSync).value();
      const auto bytes = arenas_.Read(got.place, *io, bounce);
      ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
      const auto image = ParseImage(bytes->first(got.image_bytes));
      ASSERT_TRUE(image.ok()) << image.status().ToString();
      ASSERT_TRUE(VerifyImage(*image).ok());
      EXPECT_EQ(image->identity.key, MakeKey(wanted));
      if (got.precision != Precision::kBits16) {
        ++lossy;
        continue;
      }
      ++exact;
      const std::span<const std::byte> kept = image->Parts(0).part[0];
      EXPECT_EQ(std::memcmp(kept.data(), raw_of(wanted).data(), raw_of(wanted).size()), 0);
    }
    Call<Done>(Release{session, LeaseId{number}, {}, {}})
        .status()
        .IgnoreBecause("an acquire of nothing has no lease");
  }
  EXPECT_GT(exact, 150u);
  EXPECT_GT(lossy, 0u);
  EXPECT_EQ(metrics_.puts_stored.Get(), 300u);
}

TEST_F(EngineThreadTest, CallersThatStepTheEngineThemselvesAllGetTheirAnswer) {
  const SessionId session{1};
  ASSERT_TRUE(Call<OpenedSession>(OpenSession{session, "uid:1", {}}).ok());
  const ModelId model = Call<RegisteredModel>(RegisterModel{session, spec_, {}})->model;
  constexpr int kCallers = 4, kCalls = 500;
  std::atomic<int> answered = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        std::promise<void> answer;
        Lookup lookup;
        lookup.session = session;
        lookup.model = model;
        lookup.keys = {MakeKey(1)};
        lookup.reply = [&](Result<LookupReply> reply) {
          answered += reply.ok();
          answer.set_value();
        };
        KVTIER_CHECK(
            commands_.TryPushQuietly({.deadline = clock_.Now() + kPatience, .body = std::move(lookup)}));
        thread_->StepHere();
        KVTIER_CHECK(answer.get_future().wait_for(2 * kPatience) == std::future_status::ready);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered.load(), kCallers * kCalls);
  EXPECT_EQ(metrics_.lookups.Get(), static_cast<uint64_t>(kCallers * kCalls));
}

/// Throws in its first steps.
class Shaky final : public Engine {
 public:
  explicit Shaky(const Metrics& metrics) : metrics_(metrics) {}
  TimePoint Step(TimePoint) override {
    steps_while_red += metrics_.unhealthy_threads.Get() == 1 ? 1 : 0;
    if (steps.fetch_add(1) < 3) throw std::runtime_error("planted");
    return kNoTime;
  }
  void CheckInvariants() const override {}
  uint64_t Outstanding() const override { return 0; }
  bool draining() const override { return false; }
  std::atomic<int> steps{0}, steps_while_red{0};

 private:
  const Metrics& metrics_;
};

TEST(EngineThreadSupervision, S28_AnEscapedExceptionIsCountedAndTheLoopGoesOn) {
  Metrics metrics;
  Shaky engine(metrics);
  SteadyClock clock;
  BoundedQueue<Command> commands(16);
  EngineThread thread(engine, commands, clock, metrics);
  ASSERT_TRUE(thread.Start().ok());
  const TimePoint give_up = clock.Now() + kPatience;
  while (engine.steps.load() < 4 && clock.Now() < give_up) commands.Wake();
  thread.Stop();
  EXPECT_EQ(metrics.worker_restarts.Get(), 3u);
  EXPECT_EQ(engine.steps_while_red, 3) << "from the first failure to the end of the first step that works";
  EXPECT_EQ(metrics.unhealthy_threads.Get(), 0);
}

TEST(EngineThreadSupervision, TheHeartbeatMovesWhileThereIsNothingToDo) {
  Metrics metrics;
  Shaky engine(metrics);
  engine.steps = 10;
  SteadyClock clock;
  BoundedQueue<Command> commands(16);
  EngineThread thread(engine, commands, clock, metrics);
  ASSERT_TRUE(thread.Start().ok());
  const TimePoint first = thread.LastStep();
  const TimePoint give_up = clock.Now() + kPatience;
  while (thread.LastStep() == first && clock.Now() < give_up) commands.Wake();
  EXPECT_GT(thread.LastStep(), first);
  thread.Stop();
}

}  // namespace
}  // namespace kvtier
