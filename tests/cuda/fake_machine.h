#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace kvtier {

/// A test on a machine whose GPU is fake. Whatever the code under test did that no program may rely on fails
/// the test, and so does what it left behind.
class FakeMachineTest : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::Reset({}); }
  void TearDown() override { ExpectClean(); }

  static void ExpectClean(const std::string& when = "at the end") {
    EXPECT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << when;
    EXPECT_EQ(fake_cuda::LiveObjects(), 0u) << when;
  }
};

/// Orders of work that a test goes through.
inline constexpr uint64_t kOrders = 40;

}  // namespace kvtier
