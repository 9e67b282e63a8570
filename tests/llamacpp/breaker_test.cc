#include "client/engines/llamacpp/breaker.h"

#include <gtest/gtest.h>

namespace kvtier::llamacpp {
namespace {

TEST(Breaker, WaitsTwiceAsLongAfterEachFailureUpToABound) {
  TimePoint now{};
  Breaker breaker;
  EXPECT_TRUE(breaker.Allows(now));
  Duration pause = Breaker::kPauseMin;
  for (int failure = 0; failure < 10; ++failure) {
    breaker.Failed(now);
    EXPECT_FALSE(breaker.Allows(now + pause - std::chrono::nanoseconds(1))) << failure;
    now += pause;
    EXPECT_TRUE(breaker.Allows(now)) << failure;
    pause = std::min(2 * pause, Breaker::kPauseMax);
  }
  EXPECT_EQ(pause, Breaker::kPauseMax);
}

TEST(Breaker, ForgetsFailuresAfterASuccess) {
  const TimePoint now{};
  Breaker breaker;
  for (int failure = 0; failure < 10; ++failure) breaker.Failed(now);
  breaker.Succeeded();
  EXPECT_TRUE(breaker.Allows(now));
  breaker.Failed(now);
  EXPECT_TRUE(breaker.Allows(now + Breaker::kPauseMin));
}

}  // namespace
}  // namespace kvtier::llamacpp
