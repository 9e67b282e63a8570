#include "client/src/other_cpus.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <latch>
#include <vector>

namespace kvtier::client {
namespace {

cpu_set_t Only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return set;
}

/// Two threads, on a machine that has two CPUs for them.
class OtherCpusTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof all_, &all_), 0);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &all_)) cpus.push_back(cpu);
    if (cpus.size() < 2) GTEST_SKIP() << "one CPU";
    first_ = cpus[0];
    second_ = cpus[1];
  }
  ~OtherCpusTest() override {
    done_.count_down();
    for (std::thread& thread : threads_) thread.join();
  }
  void Start() {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { done_.wait(); });
  }
  void Pin(const cpu_set_t& set) {
    for (std::thread& thread : threads_)
      ASSERT_EQ(pthread_setaffinity_np(thread.native_handle(), sizeof set, &set), 0);
  }
  bool AllMayRunOn(const cpu_set_t& expected) {
    for (std::thread& thread : threads_) {
      cpu_set_t set;
      if (pthread_getaffinity_np(thread.native_handle(), sizeof set, &set) != 0) return false;
      if (!CPU_EQUAL(&set, &expected)) return false;
    }
    return true;
  }
  cpu_set_t AllBut(int cpu) const {
    cpu_set_t set = all_;
    CPU_CLR(cpu, &set);
    return set;
  }

  cpu_set_t all_{};
  int first_ = 0, second_ = 0;
  std::latch done_{1};
  std::vector<std::thread> threads_;
  OtherCpus others_;
};

TEST_F(OtherCpusTest, ThreadsLeaveTheCpuAndComeBackToIt) {
  Start();
  others_.Leave(threads_, first_);
  EXPECT_TRUE(AllMayRunOn(AllBut(first_)));
  others_.Leave(threads_, second_);
  EXPECT_TRUE(AllMayRunOn(AllBut(second_)));
}

TEST_F(OtherCpusTest, TheOnlyCpuIsNotLeft) {
  Start();
  Pin(Only(first_));
  others_.Leave(threads_, first_);
  EXPECT_TRUE(AllMayRunOn(Only(first_)));
}

TEST_F(OtherCpusTest, AMaskThatSomebodyGaveThemIsKept) {
  Start();
  Pin(Only(first_));
  others_.Leave(threads_, second_);
  Pin(all_);
  others_.Leave(threads_, first_);
  EXPECT_TRUE(AllMayRunOn(AllBut(first_)));
  Pin(Only(first_));
  others_.Leave(threads_, second_);
  EXPECT_TRUE(AllMayRunOn(Only(first_)));
}

}  // namespace
}  // namespace kvtier::client
