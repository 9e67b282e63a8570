#include <gtest/gtest.h>

#include "tests/support/engine_harness.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class PutTest : public testing::Test {
 protected:
  EngineHarness harness_{{.tiers = {HostTier("hot", kMiB, CodecId::kRaw16)}}};
  ModelSpec spec_ = TinyModel();
  SessionId session_ = harness_.Open(1);
  ModelId model_ = harness_.Register(session_, spec_);
};

TEST_F(PutTest, StoresBlocksThatAnAcquireFinds) {
  const Result<PutReply> put = harness_.PutChain(session_, model_, spec_, 1, 4);
  ASSERT_TRUE(put.ok());
  for (const PutOutcome& outcome : put->blocks) {
    EXPECT_EQ(outcome.code, Code::kOk);
    EXPECT_EQ(outcome.precision, Precision::kBits16);
  }
  const Result<AcquireReply> acquired = harness_.AcquireKeys(session_, model_, 1, harness_.ChainKeysOf(1, 5));
  ASSERT_TRUE(acquired.ok());
  ASSERT_EQ(acquired->run.size(), 4u);
  EXPECT_EQ(acquired->stopped_by, Code::kNotFound);
  for (uint64_t i = 0; i < 4; ++i) {
    const auto image = harness_.fake().At(acquired->run[i].place);
    ASSERT_TRUE(image.has_value());
    EXPECT_EQ(image->owner, i + 1);
  }
  EXPECT_TRUE(harness_.ReleaseLease(session_, 1).ok());
  EXPECT_EQ(harness_.ReleaseLease(session_, 1).status().code(), Code::kStale);
  harness_.engine().CheckInvariants();
}

}  // namespace
}  // namespace kvtier
