#include <gtest/gtest.h>

#include <random>

#include "tests/support/teams/fiber_team.h"
#include "tiers/crc32c.h"
#include "tiers/cuda/batch_checksum.h"

namespace kvtier {
namespace {

/// Stretches of odd and even numbers of words, none, and fewer than there are lanes.
std::vector<std::vector<uint8_t>> Stretches() {
  std::vector<std::vector<uint8_t>> stretches;
  std::mt19937 rng(7);
  for (const size_t bytes : {0, 4, 64, 124, 128, 132, 508, 512, 516, 4096, 65536 + 64}) {
    stretches.emplace_back(bytes);
    for (uint8_t& byte : stretches.back()) byte = static_cast<uint8_t>(rng());
  }
  return stretches;
}

class ChecksumTest : public testing::Test {
 protected:
  ChecksumTest() : stretches_(Stretches()), crcs_(stretches_.size()) {
    for (const auto& stretch : stretches_)
      items_.push_back({.data = stretch.data(), .bytes = stretch.size()});
    args_ = {.items = items_.data(), .count = static_cast<uint32_t>(items_.size()), .crcs = crcs_.data()};
  }
  void ExpectRight() {
    for (size_t i = 0; i < stretches_.size(); ++i) {
      EXPECT_EQ(crcs_[i], Crc32c(std::as_bytes(std::span(stretches_[i]))))
          << stretches_[i].size() << " bytes";
    }
    crcs_.assign(crcs_.size(), 0);
  }

  std::vector<std::vector<uint8_t>> stretches_;
  std::vector<ChecksumItem> items_;
  std::vector<uint32_t> crcs_;
  ChecksumBatchArgs args_;
};

TEST_F(ChecksumTest, OneLaneGivesTheHostsChecksum) {
  LaunchSerial(ChecksumBatchLaunch(args_), [&](const SerialTeam& team) { ChecksumBatch(team, args_); });
  ExpectRight();
}

TEST_F(ChecksumTest, LanesInAnyOrderGiveTheHostsChecksum) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow fibers";
#endif
  for (const uint32_t lanes : {32u, 128u}) {
    for (const LaneOrder order : {LaneOrder::kForward, LaneOrder::kReverse, LaneOrder::kRandom}) {
      const Status status =
          LaunchFibers(ChecksumBatchLaunch(args_), {.lanes = lanes, .order = order, .seed = lanes},
                       [&](const FiberTeam& team) { ChecksumBatch(team, args_); });
      ASSERT_TRUE(status.ok()) << status.ToString();
      ExpectRight();
    }
  }
}

}  // namespace
}  // namespace kvtier
