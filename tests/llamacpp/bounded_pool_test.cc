#include "client/engines/llamacpp/bounded_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace kvtier::llamacpp {
namespace {

TEST(BoundedPool, RunsEveryJobAlsoThoseThatWaitWhenItFinishes) {
  std::atomic<int> ran = 0;
  {
    BoundedPool pool(3, 2);
    for (int i = 0; i < 200; ++i) pool.Add([&] { ++ran; });
    pool.Finish();
    EXPECT_EQ(ran, 200);
  }
  EXPECT_EQ(ran, 200);
}

TEST(BoundedPool, HoldsBackWhoBringsMoreThanItMayKeep) {
  std::latch begun(1), go_on(1);
  std::atomic<int> added = 0;
  BoundedPool pool(1, 2);
  std::thread adder([&] {
    pool.Add([&] {
      begun.count_down();
      go_on.wait();
    });
    for (int i = 0; i < 5; ++i) {
      pool.Add([] {});
      ++added;
    }
  });
  begun.wait();
  while (added < 2) std::this_thread::yield();
  // One runs and two wait; no third can have been taken.
  EXPECT_EQ(added, 2);
  go_on.count_down();
  adder.join();
  EXPECT_EQ(added, 5);
}

}  // namespace
}  // namespace kvtier::llamacpp
