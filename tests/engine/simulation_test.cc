#include "tests/engine/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvtier {
namespace {

/// More for long runs: KVTIER_SIM_SEEDS.
uint64_t Seeds() {
  const char* text = std::getenv("KVTIER_SIM_SEEDS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 12;
}

void ExpectAllHeld(const SimulationOptions& options) {
  SCOPED_TRACE("seed " + std::to_string(options.seed));
  Simulation simulation(options);
  const std::optional<std::string> violation = simulation.Run();
  EXPECT_FALSE(violation.has_value()) << *violation;
}

TEST(Simulation, NothingWrongIsReadInSmallTiersWithFaults) {
  for (uint64_t seed = 1; seed <= Seeds() && !testing::Test::HasFailure(); ++seed)
    ExpectAllHeld({.seed = seed});
}

TEST(Simulation, NothingAcknowledgedIsLostInRoomyTiers) {
  for (uint64_t seed = 1; seed <= Seeds() && !testing::Test::HasFailure(); ++seed) {
    ExpectAllHeld({.seed = seed, .roomy = true});
  }
}

TEST(Simulation, NothingWrongIsReadInAStoreThatClientsMap) {
  uint64_t read_in_place = 0;
  for (uint64_t seed = 1; seed <= Seeds() && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation({.seed = seed, .mapped_store = true});
    const std::optional<std::string> violation = simulation.Run();
    EXPECT_FALSE(violation.has_value()) << *violation;
    read_in_place += simulation.read_in_place();
  }
  EXPECT_GT(read_in_place, Seeds());
}

TEST(Simulation, NothingWrongIsReadOfAGpuAlsoWhenItIsLost) {
  uint64_t acquired = 0, lost = 0, came_back = 0;
  for (uint64_t seed = 1; seed <= Seeds() && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation({.seed = seed, .gpu = true});
    const std::optional<std::string> violation = simulation.Run();
    EXPECT_FALSE(violation.has_value()) << *violation;
    acquired += simulation.acquired();
    lost += simulation.lost_gpu();
    for (size_t to = 1; to < kMaxTiers; ++to) came_back += simulation.metrics().moves[0][to].blocks.Get();
  }
  EXPECT_GT(acquired, Seeds() * 30);
  EXPECT_GT(came_back, Seeds() * 30);
  EXPECT_GT(lost, Seeds() / 4);
  EXPECT_LT(lost, Seeds());
}

TEST(Simulation, NothingAcknowledgedIsLostInRoomyTiersOnAGpu) {
  for (uint64_t seed = 1; seed <= Seeds() && !testing::Test::HasFailure(); ++seed) {
    ExpectAllHeld({.seed = seed, .roomy = true, .gpu = true});
  }
}

TEST(Simulation, GivesTheSameForTheSameSeed) {
  Simulation first({.seed = 3, .steps = 3000}), second({.seed = 3, .steps = 3000});
  first.Run();
  second.Run();
  EXPECT_EQ(first.acquired(), second.acquired());
  EXPECT_EQ(first.metrics().puts_stored.Get(), second.metrics().puts_stored.Get());
}

TEST(Simulation, GivesTheSameForTheSameSeedOnAGpu) {
  Simulation first({.seed = 5, .steps = 3000, .gpu = true}), second({.seed = 5, .steps = 3000, .gpu = true});
  first.Run();
  second.Run();
  EXPECT_GT(first.acquired(), 0u);
  EXPECT_EQ(first.acquired(), second.acquired());
  EXPECT_EQ(first.metrics().puts_stored.Get(), second.metrics().puts_stored.Get());
}

TEST(Simulation, CanaryAPublishedFailedMoveIsFound) {
  uint64_t found = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Simulation simulation({.seed = seed, .publish_failed_moves = true});
    found += simulation.Run().has_value();
  }
  EXPECT_EQ(found, 4u);
}

TEST(Simulation, CanaryAPublishedFailedMoveIsFoundOnAGpu) {
  uint64_t found = 0;  // few blocks are read in some runs
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Simulation simulation({.seed = seed, .publish_failed_moves = true, .gpu = true});
    found += simulation.Run().has_value();
  }
  EXPECT_GE(found, 6u);
}

}  // namespace
}  // namespace kvtier
