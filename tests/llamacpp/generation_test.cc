#include "client/engines/llamacpp/generation.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvtier::llamacpp {
namespace {

constexpr std::chrono::seconds kPatience{30};

TEST(Generation, HandsOverTextAndThenTheEnd) {
  Generation generation({}, TimePoint{});
  EXPECT_EQ(generation.Take(Duration::zero()).text, "");
  generation.Add("a");
  generation.Add("");
  generation.Add("b");
  const Generation::Chunk chunk = generation.Take(kPatience);
  EXPECT_EQ(chunk.text, "ab");
  EXPECT_FALSE(chunk.end.has_value());
  generation.End({.reason = FinishReason::kLength, .status = Status::Ok(), .cost = {}});
  const Generation::Chunk last = generation.Take(kPatience);
  EXPECT_EQ(last.text, "");
  ASSERT_TRUE(last.end.has_value());
  EXPECT_EQ(last.end->reason, FinishReason::kLength);
}

TEST(Generation, WakesWhoWaitsOnAnotherThread) {
  Generation generation({}, TimePoint{});
  std::string text;
  std::thread reader([&] {
    for (;;) {
      Generation::Chunk chunk = generation.Take(kPatience);
      text += chunk.text;
      if (chunk.end.has_value()) return;
    }
  });
  for (int i = 0; i < 1000; ++i) generation.Add("x");
  generation.End({});
  reader.join();
  EXPECT_EQ(text, std::string(1000, 'x'));
}

TEST(Generation, TellsTheEngineThatNobodyWaits) {
  Generation generation({}, TimePoint{});
  EXPECT_FALSE(generation.cancelled());
  generation.Cancel();
  EXPECT_TRUE(generation.cancelled());
}

}  // namespace
}  // namespace kvtier::llamacpp
