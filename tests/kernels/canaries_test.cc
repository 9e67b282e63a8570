// The teams of the tests find what they are there to find: bodies with a fault in their barriers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>

#include "tests/kernels/faulty_bodies.h"
#include "tests/kernels/plane_buffers.h"
#include "tests/kernels/team_launchers.h"
#include "tests/support/paths.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

class CanaryTest : public testing::Test {
 protected:
  CanaryTest() : planes_(kCanaryShape, [at = 0u]() mutable { return static_cast<uint8_t>(at++ * 37 >> 3); }) {
    for (uint32_t c = 0; c < kCanaryShape.k_dim; ++c)
      Store16(planes_.sections().k_scale + 2 * c, static_cast<uint16_t>(0x3c00 + c));
  }

  template <BarrierFault fault, typename Launch>
  std::vector<uint8_t> BytesOf(const Launch& launch) const {
    const PlaneBuffers out(kCanaryShape, 0x5A);
    const GatherBoostArgs args = {.shape = kCanaryShape, .in = planes_.Read(), .out = out.sections()};
    launch(GatherBoostLaunch(kCanaryShape),
           [&](const auto& team) { FaultyGatherBoostBits<fault>(team, args); });
    return out.Bytes();
  }
  /// Whether a fiber team of 32 lanes gives other bytes than one lane.
  template <BarrierFault fault>
  bool IsFound(LaneOrder order, uint64_t seed = kLaneSeed) const {
    const FiberOptions options = {.lanes = 32, .order = order, .seed = seed};
    return BytesOf<fault>(FiberLauncher{options}) != BytesOf<fault>(SerialLauncher());
  }

  PlaneBuffers planes_;
};

TEST_F(CanaryTest, TheCopyWithoutAFaultIsTheOriginal) {
  const PlaneBuffers out(kCanaryShape, 0x5A);
  const GatherBoostArgs args = {.shape = kCanaryShape, .in = planes_.Read(), .out = out.sections()};
  LaunchSerial(GatherBoostLaunch(kCanaryShape), [&](const SerialTeam& team) { GatherBoostBits(team, args); });
  EXPECT_EQ(BytesOf<BarrierFault::kNone>(SerialLauncher()), out.Bytes());
  for (const LaneOrder order : {LaneOrder::kForward, LaneOrder::kReverse, LaneOrder::kRandom})
    EXPECT_FALSE(IsFound<BarrierFault::kNone>(order));
}

TEST_F(CanaryTest, ABarrierThatIsMissingBeforeAReaderOfAllLanesIsFound) {
  EXPECT_TRUE(IsFound<BarrierFault::kMissingBeforeIds>(LaneOrder::kForward));
  EXPECT_FALSE(IsFound<BarrierFault::kMissingBeforeIds>(LaneOrder::kReverse))
      << "why one order is not enough";
  for (uint64_t seed = 0; seed < 4; ++seed)
    EXPECT_TRUE(IsFound<BarrierFault::kMissingBeforeIds>(LaneOrder::kRandom, seed)) << "seed " << seed;
}

TEST_F(CanaryTest, ABarrierThatIsMissingAfterAWriterForAllLanesIsFound) {
  EXPECT_FALSE(IsFound<BarrierFault::kMissingAfterIds>(LaneOrder::kForward)) << "why one order is not enough";
  EXPECT_TRUE(IsFound<BarrierFault::kMissingAfterIds>(LaneOrder::kReverse));
  for (uint64_t seed = 0; seed < 4; ++seed)
    EXPECT_TRUE(IsFound<BarrierFault::kMissingAfterIds>(LaneOrder::kRandom, seed)) << "seed " << seed;
}

/// What LaunchFibers says of a body, in every order.
template <typename Body>
std::vector<Status> StatusesOf(const LaunchShape& shape, const Body& body) {
  std::vector<Status> statuses;
  for (const FiberOptions& options : AllFiberOptions())
    statuses.push_back(LaunchFibers(shape, options, body));
  return statuses;
}

TEST_F(CanaryTest, LanesAtDifferentBarriersAreReportedWithTheirPlaces) {
  const PlaneBuffers out(kCanaryShape, 0x5A);
  const GatherBoostArgs args = {.shape = kCanaryShape, .in = planes_.Read(), .out = out.sections()};
  const auto body = [&](const FiberTeam& team) {
    FaultyGatherBoostBits<BarrierFault::kOneLaneOnly>(team, args);
  };
  for (const Status& status : StatusesOf(GatherBoostLaunch(kCanaryShape), body)) {
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("block 0: divergent lanes: lane 0 is at the barrier"));
    EXPECT_THAT(status.message(), HasSubstr("lane 1 is at the barrier"));
    EXPECT_THAT(status.message(), HasSubstr("faulty_bodies.h:"));
  }
}

TEST_F(CanaryTest, LanesThatEndWhileOthersWaitAreReported) {
  const auto body = [](const FiberTeam& team) {
    if (team.rank() < team.size() / 2) team.sync();
  };
  for (const Status& status : StatusesOf({.blocks = 1, .scratch_bytes = 64}, body)) {
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("has finished"));
  }
}

TEST_F(CanaryTest, AShuffleThatAWarpDoesNotShareIsReported) {
  const auto body = [](const FiberTeam& team) {
    if (team.rank() % 2 == 0) team.shfl_xor(team.rank(), 1u);
    team.sync();
  };
  for (const Status& status : StatusesOf({.blocks = 1, .scratch_bytes = 64}, body)) {
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("lane 0 is at the shuffle"));
  }
}

TEST_F(CanaryTest, AByteBeyondTheScratchIsTheEnd) {
  const auto body = [](const FiberTeam& team) { team.scratch()[128 + team.rank()] = std::byte{1}; };
  EXPECT_DEATH(LaunchFibers({.blocks = 1, .scratch_bytes = 128}, {}, body).IgnoreBecause("it dies"), "");
}

#if defined(__SANITIZE_THREAD__)
struct Ended {
  std::string output;
  int status = 0;
};
/// Runs the program of faulty_on_threads.cc on one fault.
Ended RunOnThreads(const std::string& fault) {
  const std::string command = ProgramFolder() + "/kvtier_faulty_on_threads " + fault + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Ended ended;
  std::array<char, 4096> buffer;
  while (const size_t bytes = fread(buffer.data(), 1, buffer.size(), pipe))
    ended.output.append(buffer.data(), bytes);
  ended.status = pclose(pipe);
  return ended;
}

TEST_F(CanaryTest, ThreadSanitizerIsContentWithTheBodyWithoutAFault) {
  const Ended ended = RunOnThreads("none");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_F(CanaryTest, ThreadSanitizerReportsTheMissingBarriers) {
  for (const char* fault : {"missing-before-ids", "missing-after-ids"}) {
    const Ended ended = RunOnThreads(fault);
    EXPECT_NE(ended.status, 0) << fault;
    EXPECT_THAT(ended.output, HasSubstr("WARNING: ThreadSanitizer: data race")) << fault;
    EXPECT_THAT(ended.output, HasSubstr("faulty_bodies.h:")) << fault;
  }
}
#endif

}  // namespace
}  // namespace kvtier
