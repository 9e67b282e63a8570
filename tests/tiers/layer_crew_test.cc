#include "tiers/layer_crew.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <new>
#include <set>

namespace kvtier {
namespace {

std::unique_ptr<LayerCrew> Crew(uint32_t helpers) {
  auto crew = LayerCrew::Make(helpers);
  KVTIER_CHECK(crew.ok());
  return std::move(*crew);
}

TEST(LayerCrew, EveryIndexIsCalledOnceWhateverTheHelpers) {
  for (const uint32_t helpers : {0u, 1u, 3u}) {
    const auto crew = Crew(helpers);
    for (const uint32_t count : {0u, 1u, 2u, 7u, 64u}) {
      std::array<std::atomic<int>, 64> calls = {};
      crew->ForEach(count, [&](uint32_t index, uint32_t) { ++calls[index]; });
      for (uint32_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], i < count ? 1 : 0) << helpers;
    }
  }
}

TEST(LayerCrew, AFreeHelperSharesTheWork) {
  const auto crew = Crew(1);
  std::atomic<uint32_t> started = 0;
  std::array<std::atomic<uint32_t>, 2> place_of = {};
  // Each call waits until the other runs too: only two threads can get through.
  crew->ForEach(2, [&](uint32_t index, uint32_t place) {
    place_of[index] = place;
    ++started;
    started.notify_all();
    for (uint32_t seen = started; seen < 2; seen = started) started.wait(seen);
  });
  EXPECT_EQ((std::set<uint32_t>{place_of[0], place_of[1]}), (std::set<uint32_t>{0, 1}));
}

TEST(LayerCrew, NoPlaceOfOneShareIsEnteredTwiceAtATimeAndManyCallersShareTheHelpers) {
  const auto crew = Crew(2);
  std::atomic<int> clashes = 0, total = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        std::array<std::atomic<bool>, 3> inside = {};
        crew->ForEach(16, [&](uint32_t, uint32_t place) {
          if (inside[place].exchange(true)) ++clashes;
          ++total;
          inside[place] = false;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(clashes, 0);
  EXPECT_EQ(total, 4 * 50 * 16);
}

TEST(LayerCrew, AHelperThatWakesAsTheLastIndexGoesFindsNoWork) {
  const auto crew = Crew(3);
  std::atomic<int> calls = 0;
  const auto body = [&](uint32_t, uint32_t) { ++calls; };
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller) {
    // Bodies this short are over while helpers still look for work.
    callers.emplace_back([&] {
      for (int round = 0; round < 20'000; ++round) crew->ForEach(2, body);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 2 * 20'000 * 2);
}

TEST(LayerCrew, WhatABodyThrowsReachesTheCallerAndTheCrewGoesOn) {
  const auto crew = Crew(2);
  EXPECT_THROW(crew->ForEach(8,
                             [](uint32_t index, uint32_t) {
                               if (index == 3) throw std::bad_alloc();
                             }),
               std::bad_alloc);
  std::atomic<int> calls = 0;
  crew->ForEach(8, [&](uint32_t, uint32_t) { ++calls; });
  EXPECT_EQ(calls, 8);
}

TEST(LayerCrew, TooManyHelpersAreRefused) {
  EXPECT_EQ(LayerCrew::Make(1000).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier
