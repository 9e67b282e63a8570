// The scheduler stepped by hand, on an engine that counts: the token after t is t + 1, a multiple of 100
// ends.
#include "client/engines/llamacpp/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "tests/support/manual_clock.h"

namespace kvtier::llamacpp {
namespace {

class NoMemory final : public SequenceMemory {
 public:
  Result<std::vector<std::byte>> Save(int32_t, uint32_t) override { return std::vector<std::byte>(); }
  Status Append(std::span<const std::byte>) override { return Status::Ok(); }
  void Truncate(uint32_t) override {}
};

class CountingEngine final : public TokenEngine {
 public:
  explicit CountingEngine(uint32_t sequences) : positions_(sequences, 0) {}

  void Begin(uint32_t sequence, const Sampling&) override { positions_[sequence] = 0; }
  SequenceMemory& Memory(uint32_t) override { return memory_; }
  /// Checks what any engine wants: positions without gaps.
  Status Decode(std::span<const BatchToken> batch) override {
    if (!fails.ok()) return fails;
    for (const BatchToken& token : batch)
      EXPECT_EQ(token.position, positions_[token.sequence]++) << "sequence " << token.sequence;
    batch_.assign(batch.begin(), batch.end());
    sizes.push_back(batch.size());
    return Status::Ok();
  }
  int32_t Choose(uint32_t sequence, uint32_t index) override {
    EXPECT_TRUE(batch_[index].wants_logits);
    EXPECT_EQ(batch_[index].sequence, sequence);
    return batch_[index].token + 1;
  }
  std::string Piece(int32_t token) const override { return std::to_string(token) + ","; }
  bool EndsGeneration(int32_t token) const override { return token % 100 == 0; }
  /// Tokens that a restore put there.
  void Restored(uint32_t tokens) { positions_[0] = static_cast<int32_t>(tokens); }

  Status fails = Status::Ok();
  std::vector<size_t> sizes;

 private:
  std::vector<int32_t> positions_;
  std::vector<BatchToken> batch_;
  NoMemory memory_;
};

class ListCache final : public PromptCache {
 public:
  explicit ListCache(CountingEngine& engine) : engine_(engine) {}
  RestoreReport Restore(std::span<const int32_t> tokens, SequenceMemory&) override {
    restored.push_back(tokens.size());
    RestoreReport report;
    report.tokens = has;
    report.full_tokens = has / 4 * 4;
    engine_.Restored(has);
    return report;
  }
  StoreReport Store(std::span<const int32_t> tokens, uint32_t own_from, SequenceMemory&) override {
    stored.push_back({.tokens = tokens.size(), .own_from = own_from});
    return {.full_tokens_end = static_cast<uint32_t>(tokens.size() / 4 * 4)};
  }
  uint32_t tokens_per_block() const override { return 4; }
  bool connected() const override { return true; }

  struct Stored {
    size_t tokens;
    uint32_t own_from;
    friend bool operator==(const Stored&, const Stored&) = default;
  };
  uint32_t has = 0;
  std::vector<size_t> restored;
  std::vector<Stored> stored;

 private:
  CountingEngine& engine_;
};

GenerationRequest Request(int32_t first, size_t prompt, uint32_t max_tokens) {
  GenerationRequest request;
  request.tokens.resize(prompt);
  std::iota(request.tokens.begin(), request.tokens.end(), first);
  request.max_tokens = max_tokens;
  return request;
}

class SchedulerTest : public testing::Test {
 protected:
  std::shared_ptr<Generation> Submit(GenerationRequest request) {
    Result<std::shared_ptr<Generation>> generation = scheduler_.Submit(std::move(request));
    EXPECT_TRUE(generation.ok()) << generation.status().ToString();
    return *generation;
  }
  /// The end of a generation within some steps.
  std::optional<GenerationEnd> StepToEnd(Generation& generation, std::string& text, int steps = 100) {
    for (int i = 0; i < steps; ++i) {
      scheduler_.Step();
      Generation::Chunk chunk = generation.Take(Duration::zero());
      text += chunk.text;
      if (chunk.end.has_value()) return chunk.end;
    }
    return std::nullopt;
  }

  ManualClock clock_;
  CountingEngine engine_{2};
  Scheduler scheduler_{
      engine_, nullptr, {.sequences = 2, .sequence_tokens = 64, .batch_tokens = 8, .queue_max = 3}, clock_};
};

TEST_F(SchedulerTest, GeneratesUntilMaxTokens) {
  const auto generation = Submit(Request(10, 3, 4));
  std::string text;
  const auto end = StepToEnd(*generation, text);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->reason, FinishReason::kLength);
  EXPECT_EQ(text, "13,14,15,16,");
  EXPECT_EQ(end->cost.prompt_tokens, 3u);
  EXPECT_EQ(end->cost.generated_tokens, 4u);
  EXPECT_EQ(scheduler_.State().busy, 0u);
}

TEST_F(SchedulerTest, EndsWhereTheModelDoesAndAtAStopString) {
  std::string text;
  const auto own = Submit(Request(95, 3, 50));
  EXPECT_EQ(StepToEnd(*own, text)->reason, FinishReason::kStop);
  EXPECT_EQ(text, "98,99,");
  GenerationRequest request = Request(10, 3, 50);
  request.stops = {"5,1"};
  const auto stopped = Submit(std::move(request));
  text.clear();
  EXPECT_EQ(StepToEnd(*stopped, text)->reason, FinishReason::kStop);
  EXPECT_EQ(text, "13,14,1");
}

TEST_F(SchedulerTest, LongPromptsGoInPiecesWhileOthersGenerate) {
  const auto first = Submit(Request(10, 3, 20));
  scheduler_.Step();
  const auto second = Submit(Request(200, 30, 2));
  std::string text, other;
  ASSERT_TRUE(StepToEnd(*second, text).has_value());
  EXPECT_EQ(text, "230,231,");
  EXPECT_LE(*std::max_element(engine_.sizes.begin(), engine_.sizes.end()), 8u);
  // 30 tokens of prompt at 7 a step beside the other's next token.
  EXPECT_THAT(engine_.sizes, testing::ElementsAre(3, 8, 8, 8, 8, 3, 2));
  ASSERT_TRUE(StepToEnd(*first, other).has_value());
  EXPECT_TRUE(other.starts_with("13,14,15,16,17,18,19,20,"));
}

TEST_F(SchedulerTest, RefusesWhatItCannotServe) {
  EXPECT_EQ(scheduler_.Submit(Request(1, 0, 1)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler_.Submit(Request(1, 1, 0)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler_.Submit(Request(1, 60, 5)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler_.Submit(Request(1, 60, 0xffff'ffff)).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(scheduler_.Submit(Request(1, 60, 4)).ok());
}

TEST_F(SchedulerTest, TheQueueIsBounded) {
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < 3; ++i) generations.push_back(Submit(Request(1000 * i + 1, 2, 3)));
  EXPECT_EQ(scheduler_.Submit(Request(1, 2, 3)).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(scheduler_.State().rejected, 1u);
  for (int i = 0; i < 3; ++i) {
    std::string text;
    ASSERT_TRUE(StepToEnd(*generations[static_cast<size_t>(i)], text).has_value());
    EXPECT_EQ(text, std::to_string(1000 * i + 3) + "," + std::to_string(1000 * i + 4) + "," +
                        std::to_string(1000 * i + 5) + ",");
  }
  EXPECT_TRUE(scheduler_.Submit(Request(1, 2, 3)).ok()) << "there is room again";
}

TEST_F(SchedulerTest, EndsRequestsWhoseTimeIsOverAlsoQueuedOnes) {
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = Request(1000 * i + 1, 2, 60);
    request.deadline = clock_.Now() + std::chrono::seconds(i == 0 ? 100 : 1);
    generations.push_back(Submit(std::move(request)));
  }
  scheduler_.Step();
  clock_.Advance(std::chrono::seconds(1));
  scheduler_.Step();
  EXPECT_FALSE(generations[0]->Take(Duration::zero()).end.has_value());
  for (size_t i = 1; i < 3; ++i) {
    const auto end = generations[i]->Take(Duration::zero()).end;
    ASSERT_TRUE(end.has_value()) << i;
    EXPECT_EQ(end->reason, FinishReason::kDeadline);
  }
}

TEST_F(SchedulerTest, EndsACancelledRequest) {
  const auto generation = Submit(Request(1, 2, 60));
  scheduler_.Step();
  generation->Cancel();
  scheduler_.Step();
  EXPECT_EQ(generation->Take(Duration::zero()).end->reason, FinishReason::kCancelled);
  EXPECT_EQ(scheduler_.State().busy, 0u);
}

TEST_F(SchedulerTest, AFailedDecodeEndsWhatWasInTheEngineAndNoMore) {
  const auto first = Submit(Request(1, 2, 60)), second = Submit(Request(1001, 2, 60));
  const auto waiting = Submit(Request(2001, 2, 2));
  scheduler_.Step();
  engine_.fails = Status(Code::kInternal, "broken");
  scheduler_.Step();
  engine_.fails = Status::Ok();
  for (const auto& generation : {first, second}) {
    const auto end = generation->Take(Duration::zero()).end;
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->reason, FinishReason::kError);
    EXPECT_EQ(end->status.code(), Code::kInternal);
  }
  std::string text;
  EXPECT_EQ(StepToEnd(*waiting, text)->reason, FinishReason::kLength);
  EXPECT_EQ(text, "2003,2004,");
}

TEST_F(SchedulerTest, AStopLetsRequestsEndUntilItsTimeIsOver) {
  const auto runs = Submit(Request(1, 2, 3)), long_one = Submit(Request(1001, 2, 60));
  scheduler_.Step();
  scheduler_.Stop(std::chrono::seconds(5));
  EXPECT_EQ(scheduler_.Submit(Request(1, 2, 3)).status().code(), Code::kUnavailable);
  EXPECT_TRUE(scheduler_.State().stopping);
  std::string text;
  EXPECT_EQ(StepToEnd(*runs, text)->reason, FinishReason::kLength);
  clock_.Advance(std::chrono::seconds(5));
  scheduler_.Run();  // returns: nothing is left
  EXPECT_EQ(long_one->Take(Duration::zero()).end->reason, FinishReason::kCancelled);
}

TEST_F(SchedulerTest, ServesThreadsThatSubmitAtOnce) {
  std::thread engine([&] { scheduler_.Run(); });
  std::vector<std::thread> clients;
  std::atomic<int> good = 0, refused = 0;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 50; ++i) {
        const auto generation = scheduler_.Submit(Request(1000 * client + 1, 3, 4));
        if (!generation.ok()) {
          EXPECT_EQ(generation.status().code(), Code::kResourceExhausted);
          ++refused;
          continue;
        }
        std::string text;
        for (std::optional<GenerationEnd> end; !end.has_value();) {
          Generation::Chunk chunk = (*generation)->Take(std::chrono::seconds(30));
          text += chunk.text;
          end = chunk.end;
        }
        EXPECT_TRUE(text.starts_with(std::to_string(1000 * client + 4) + ","));
        ++good;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  scheduler_.Stop(Duration::zero());
  engine.join();
  EXPECT_EQ(good + refused, 200);
  EXPECT_GT(good, 0);
}

TEST(SchedulerWithACache, ComputesOnlyWhatTheCacheDidNotBring) {
  const ManualClock clock;
  CountingEngine engine(1);
  ListCache cache(engine);
  cache.has = 10;
  Scheduler scheduler(engine, &cache,
                      {.sequences = 1, .sequence_tokens = 64, .batch_tokens = 8, .queue_max = 3}, clock);
  const auto generation = scheduler.Submit(Request(1, 13, 3));
  ASSERT_TRUE(generation.ok());
  while (!(*generation)->Take(Duration::zero()).end.has_value()) scheduler.Step();
  EXPECT_THAT(engine.sizes, testing::ElementsAre(3, 1, 1));
  EXPECT_THAT(cache.restored, testing::ElementsAre(13));
  // After the first token the full blocks of the prompt, from the last one restored on; at the end the rest,
  // without the last token, which nobody computed.
  EXPECT_THAT(cache.stored, testing::ElementsAre(ListCache::Stored{.tokens = 12, .own_from = 8},
                                                 ListCache::Stored{.tokens = 15, .own_from = 12}));
}

TEST(SchedulerWithACache, StoresWhatACancelledRequestHadComputedAndNothingAfterAnError) {
  const ManualClock clock;
  CountingEngine engine(1);
  ListCache cache(engine);
  Scheduler scheduler(engine, &cache,
                      {.sequences = 1, .sequence_tokens = 64, .batch_tokens = 8, .queue_max = 3}, clock);
  auto generation = scheduler.Submit(Request(1, 20, 3));
  scheduler.Step();
  (*generation)->Cancel();
  scheduler.Step();
  EXPECT_THAT(cache.stored, testing::ElementsAre(ListCache::Stored{.tokens = 8, .own_from = 0}));
  cache.stored.clear();
  generation = scheduler.Submit(Request(1, 20, 3));
  scheduler.Step();
  engine.fails = Status(Code::kInternal, "broken");
  scheduler.Step();
  EXPECT_TRUE((*generation)->Take(Duration::zero()).end.has_value());
  EXPECT_TRUE(cache.stored.empty());
}

}  // namespace
}  // namespace kvtier::llamacpp
