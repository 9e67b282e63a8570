// Every fuzzer of the table for a few seconds, and that a fuzzer finds a defect where there is one.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/target.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 2718;

class FuzzTest : public testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzTest, S44_MutatedInputsAreRefusedOrServedAndNothingBreaks) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const FuzzTarget& target = GetParam();
  const FuzzOutcome outcome = FuzzForRounds(target, target.rounds, kSeed);
  RecordProperty("accepted", static_cast<int>(outcome.accepted));
  RecordProperty("refused", static_cast<int>(outcome.refused));
  EXPECT_EQ(outcome.accepted + outcome.refused, target.rounds);
  EXPECT_GE(outcome.accepted * 100, target.rounds * target.least_accepted_percent)
      << outcome.accepted << " of " << target.rounds << " accepted: the mutations are too strong";
  EXPECT_GE(outcome.refused * 100, target.rounds * target.least_refused_percent)
      << outcome.refused << " of " << target.rounds << " refused: the mutations are too weak";
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, testing::ValuesIn(FuzzTargets().begin(), FuzzTargets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

TEST(FuzzCanary, ThePlantedDefectIsFound) {
  EXPECT_DEATH(FuzzForRounds(kCanaryTarget, kCanaryTarget.rounds, kSeed), "");
}

TEST(FuzzTable, NamesDifferAndFindTheirTargets) {
  std::set<std::string_view> names = {kCanaryTarget.name};
  for (const FuzzTarget& target : FuzzTargets()) {
    EXPECT_TRUE(names.insert(target.name).second) << target.name;
    ASSERT_NE(FindFuzzTarget(target.name), nullptr);
    EXPECT_EQ(FindFuzzTarget(target.name)->run, target.run);
  }
  EXPECT_EQ(FindFuzzTarget("nothing"), nullptr);
}

}  // namespace
}  // namespace kvtier
