#include <gtest/gtest.h>

#include <set>

#include "daemon/policy/eviction.h"

namespace kvtier {
namespace {

std::unique_ptr<EvictionPolicy> MakeLru() {
  return MakeEvictionPolicy("lru").value();
}
bool Anything(void*, uint32_t) {
  return true;
}
bool NotHeld(void* held, uint32_t entry) {
  return !static_cast<std::set<uint32_t>*>(held)->contains(entry);
}

TEST(Lru, GivesNothingWhenEmpty) {
  EXPECT_EQ(MakeLru()->Victim(Anything, nullptr), std::nullopt);
}

TEST(Lru, GivesTheLeastRecentlyUsed) {
  auto lru = MakeLru();
  for (uint32_t i = 0; i < 4; ++i) lru->Insert({.entry = i});
  lru->Touch(0);
  EXPECT_EQ(lru->Victim(Anything, nullptr), 1u);
  lru->Erase(1);
  EXPECT_EQ(lru->Victim(Anything, nullptr), 2u);
  EXPECT_EQ(lru->size(), 3u);
}

TEST(Lru, SkipsWhatMayNotGo) {
  auto lru = MakeLru();
  for (uint32_t i = 0; i < 4; ++i) lru->Insert({.entry = i});
  std::set<uint32_t> held{0, 1};
  EXPECT_EQ(lru->Victim(NotHeld, &held), 2u);
  held = {0, 1, 2, 3};
  EXPECT_EQ(lru->Victim(NotHeld, &held), std::nullopt);
}

TEST(Lru, KeepsAHigherPriorityLonger) {
  auto lru = MakeLru();
  lru->Insert({.entry = 0, .priority = 200});
  lru->Insert({.entry = 1, .priority = 0});
  lru->Touch(1);
  EXPECT_EQ(lru->Victim(Anything, nullptr), 1u);
  lru->Erase(1);
  EXPECT_EQ(lru->Victim(Anything, nullptr), 0u);
}

TEST(Lru, ReusesItsNodes) {
  auto lru = MakeLru();
  for (uint32_t i = 0; i < 1000; ++i) {
    lru->Insert({.entry = i});
    if (i >= 3) lru->Erase(i - 3);
  }
  EXPECT_EQ(lru->size(), 3u);
  EXPECT_EQ(lru->Victim(Anything, nullptr), 997u);
}

TEST(EvictionPolicies, RefuseAnUnknownNameAndSayWhichThereAre) {
  const auto made = MakeEvictionPolicy("clock");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
  EXPECT_NE(made.status().message().find("lru"), std::string::npos);
}

}  // namespace
}  // namespace kvtier
