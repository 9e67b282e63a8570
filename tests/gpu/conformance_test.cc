// The conformance program of tests/gpu/check.sh, on lanes of the CPU.
#include "tests/gpu/conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/team_machine.h"
#include "tests/kernels/team_launchers.h"
#include "tests/support/paths.h"

namespace kvtier {
namespace {

using testing::Gt;
using testing::IsEmpty;

template <typename Launch>
void ExpectConforms(const Launch& launch) {
  TeamMachine machine(launch);
  Conformance found;
  CheckGolden(machine, TestDataFolder(), found);
  CheckShapes(machine, found);
  CheckAttention(machine, found);
  EXPECT_THAT(found.failures, IsEmpty());
  EXPECT_THAT(found.checks, Gt(1000));
}

TEST(GpuConformanceTest, OneLaneConforms) {
  ExpectConforms(SerialLauncher());
}

TEST(GpuConformanceTest, LanesOfWarpsConformInEveryOrder) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer takes the fibers of a thread for one growing stack";
#endif
  ExpectConforms(FiberLauncher{{.lanes = 128, .order = LaneOrder::kForward, .seed = kLaneSeed}});
  ExpectConforms(FiberLauncher{{.lanes = 32, .order = LaneOrder::kReverse, .seed = kLaneSeed}});
  ExpectConforms(FiberLauncher{{.lanes = 64, .order = LaneOrder::kRandom, .seed = kLaneSeed}});
}

/// With ThreadSanitizer the judge of every barrier.
TEST(GpuConformanceTest, ThreadsConform) {
  TeamMachine machine(ThreadLauncher{32});
  Conformance found;
  CheckShortSequence(machine, found);
  EXPECT_THAT(found.failures, IsEmpty());
}

/// Damages a byte of what a batch writes.
class FaultyMachine : public TeamMachine<SerialLauncher> {
 public:
  FaultyMachine() : TeamMachine(SerialLauncher()) {}
  const char* Run(const AnyBatch& batch) override {
    const char* error = TeamMachine::Run(batch);
    if (const auto* encode = std::get_if<EncodeBatchArgs>(&batch))
      encode->items[0].target.base[0] ^= 1;
    else if (const auto* combine = std::get_if<CombineBatchArgs>(&batch))
      combine->o[0] += 0.1f;
    return error;
  }
};

TEST(GpuConformanceTest, AWrongByteIsFoundEverywhere) {
  FaultyMachine machine;
  Conformance golden, shapes, attention;
  CheckGolden(machine, TestDataFolder(), golden);
  CheckShapes(machine, shapes);
  CheckAttention(machine, attention);
  for (const Conformance& found : {golden, shapes, attention})
    EXPECT_THAT(found.failures, testing::Not(IsEmpty()));
}

}  // namespace
}  // namespace kvtier
