#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/team.h"
#include "tests/support/teams/fiber_team.h"
#include "tests/support/teams/thread_team.h"

namespace kvtier {

/// Ways to run a body: launch(shape, body), body taking any team.
struct SerialLauncher {
  template <typename Body>
  void operator()(const LaunchShape& shape, const Body& body) const {
    LaunchSerial(shape, body);
  }
};
struct FiberLauncher {
  FiberOptions options;

  template <typename Body>
  void operator()(const LaunchShape& shape, const Body& body) const {
    const Status status = LaunchFibers(shape, options, body);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
};
struct ThreadLauncher {
  uint32_t lanes = 32;

  template <typename Body>
  void operator()(const LaunchShape& shape, const Body& body) const {
    LaunchThreads(shape, lanes, body);
  }
};

inline constexpr uint64_t kLaneSeed = 4711;

/// 32, 64 and 128 lanes, forward, reverse and in a seeded random order. One of them with ThreadSanitizer,
/// which has nothing to say about fibers and takes the calls of all of them for those of one growing stack.
inline std::vector<FiberOptions> AllFiberOptions() {
#if defined(__SANITIZE_THREAD__)
  return {{.lanes = 64, .order = LaneOrder::kRandom, .seed = kLaneSeed}};
#endif
  std::vector<FiberOptions> all;
  for (const uint32_t lanes : {32u, 64u, 128u})
    for (const LaneOrder order : {LaneOrder::kForward, LaneOrder::kReverse, LaneOrder::kRandom})
      all.push_back({.lanes = lanes, .order = order, .seed = kLaneSeed});
  return all;
}

inline std::string Describe(const FiberOptions& o) {
  const char* const orders[] = {"forward", "reverse", "random"};
  return std::to_string(o.lanes) + " lanes, " + orders[static_cast<int>(o.order)] + ", seed " +
         std::to_string(o.seed);
}

/// run(launch) gives the bytes that a body writes. They are those of SerialTeam on fibers in every order.
template <typename Run>
void ExpectFibersEqualSerial(const Run& run) {
  const auto expected = run(SerialLauncher());
  for (const FiberOptions& options : AllFiberOptions())
    EXPECT_TRUE(run(FiberLauncher{options}) == expected) << Describe(options);
}

/// The same on threads: slow, and with ThreadSanitizer the judge of every barrier.
template <typename Run>
void ExpectThreadsEqualSerial(const Run& run) {
  const auto expected = run(SerialLauncher());
  for (const uint32_t lanes : {32u, 64u})
    EXPECT_TRUE(run(ThreadLauncher{lanes}) == expected) << lanes << " lanes";
}

}  // namespace kvtier
