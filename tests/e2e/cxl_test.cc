// A CXL tier under the real daemon, on a file. libpmem2 is told that its stores are flushed by cache line, so
// that it is persistent wherever the temporary folder is; but for a machine that has DAX (tests/qemu/dax.sh).
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

using testing::HasSubstr;

class Cxl : public E2eTest {
 protected:
  static bool OnDaxMachine() { return std::getenv("KVTIER_TEST_DAX") != nullptr; }
  static void SetUpTestSuite() {
    if (!OnDaxMachine()) ::setenv("PMEM2_FORCE_GRANULARITY", "CACHE_LINE", 1);
  }
  static void TearDownTestSuite() { ::unsetenv("PMEM2_FORCE_GRANULARITY"); }

  std::string CxlSection(uint64_t capacity_bytes) const {
    return "[[tier.cold]]\nmedium = \"cxl\"\nsegment = \"1MiB\"\npath = \"" + data_.File("cxl") +
           "\"\ncapacity = " + std::to_string(capacity_bytes) + "\n";
  }
  std::string NvmeSection(uint64_t capacity_bytes) const {
    std::filesystem::create_directory(data_.File("cold"));
    return "[[tier.cold]]\npath = \"" + data_.File("cold") +
           "\"\nsegment = \"8MiB\"\ncapacity = " + std::to_string(capacity_bytes) + "\n";
  }

  TemporaryFolder data_;
};

TEST_F(Cxl, WhatWasDurableIsThereAfterAKill) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  constexpr uint32_t kBlocks = 20;
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens);
  {
    const Engine engine = Connect();
    for (const auto& result :
         engine.Put(engine.Keys(Tokens(1, kBlocks * kBlockTokens)), kv, KVTIER_DURABLE)) {
      EXPECT_EQ(result.code, KVTIER_OK);
    }
  }
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlocks * kBlockTokens));
  EXPECT_EQ(engine.Hits(sequence), kBlocks);
  Kv out(kBlocks * kBlockTokens);
  const auto results = engine.Fetch(sequence, out);
  ASSERT_EQ(results.size(), kBlocks);
  for (const auto& result : results) EXPECT_EQ(result.code, KVTIER_OK);
  EXPECT_LT(out.ErrorOver(kv, 0, kBlocks * kBlockTokens), 0.2);
}

TEST_F(Cxl, ItSaysWhatTheMemoryIsAndWhatItSurvives) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  EXPECT_THAT(daemon_->Log(), HasSubstr("fsdax, persistent by flushes of cache lines"));
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_persistent{tier=\"cxl\"}"), 1.0);
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_persistent{tier=\"hot\"}"), 0.0);
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_numa_node{tier=\"hot\"}"), -1.0);
  // More than once: kvtierctl gives a connection two seconds, which a slow virtual machine may not do in.
  EXPECT_TRUE(Eventually(kPatienceMs / 1000.0, [&] {
    return Ctl(*daemon_, "tiers").output.find("persistent by flushes of cache lines, NUMA node") !=
           std::string::npos;
  }));
}

TEST_F(Cxl, S38_WithoutTheMemoryTheDaemonRunsOnWhatElseThereIs) {
  StartDaemon({.more = "[[tier.cold]]\nmedium = \"cxl\"\nnuma_node = 1000\ncapacity = \"1GiB\"\n"});
  EXPECT_THAT(daemon_->Log(), HasSubstr("tier cxl is left out: NUMA node 1000 has no memory"));
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, kBlockTokens);
  EXPECT_EQ(engine.Put(engine.Keys(Tokens(1, kBlockTokens)), kv)[0].code, KVTIER_OK);
}

TEST_F(Cxl, MemoryOfANodeWithoutProcessorsIsATier) {
  if (!OnDaxMachine()) GTEST_SKIP() << "no machine with such a node; see tests/qemu/dax.sh";
  constexpr uint32_t kFarNode = 1;
  StartDaemon({.hot_bytes = uint64_t{16} << 20,
               .more = "[[tier.cold]]\nmedium = \"cxl\"\nsource = \"numa\"\nsegment = \"1MiB\"\n"
                       "capacity = \"32MiB\"\n"});
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_numa_node{tier=\"cxl\"}"), double{kFarNode});
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_persistent{tier=\"cxl\"}"), 0.0);
  const Engine engine = Connect();
  constexpr uint32_t kBlocks = 160;  // more than hot holds
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens), out(kBlocks * kBlockTokens);
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlocks * kBlockTokens));
  for (const auto& result : engine.Put(sequence, kv)) EXPECT_EQ(result.code, KVTIER_OK);
  EXPECT_EQ(engine.Hits(sequence), kBlocks);
  EXPECT_GT(*daemon_->Metric("kvtier_moved_blocks_total{from=\"hot\",to=\"cxl\"}"), 0.0);
  const auto results = engine.Fetch(sequence, out);
  EXPECT_GT(results.size(), 0u);
  for (const auto& result : results) EXPECT_EQ(result.code, KVTIER_OK);
  EXPECT_LT(out.ErrorOver(kv, 0, results.size() * kBlockTokens), 0.5);
}

TEST_F(Cxl, S53_ASecondDaemonOnTheSameFileIsRefusedAndTheFirstGoesOn) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  TemporaryFolder other;
  std::ofstream(other.File("kvtier.toml"))
      << "[server]\nsocket = \"" << other.File("s") << "\"\n"
      << CxlSection(uint64_t{32} << 20) << "[metrics]\nlisten = \"off\"\n";
  const ProgramResult second = RunProgram("kvtierd", "--config " + other.File("kvtier.toml"));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.output, HasSubstr(data_.File("cxl") + ": another daemon uses it"));
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, kBlockTokens);
  EXPECT_EQ(engine.Put(engine.Keys(Tokens(1, kBlockTokens)), kv, KVTIER_DURABLE)[0].code, KVTIER_OK);
}

TEST_F(Cxl, AboveNvmeAFullTierLosesNothing) {
  StartDaemon({.hot_bytes = uint64_t{16} << 20,
               .more = CxlSection(uint64_t{16} << 20) + NvmeSection(uint64_t{256} << 20)});
  const Engine engine = Connect();
  constexpr uint32_t kSequences = 12, kBlocks = 64;  // 96 MiB raw, some 20 MiB as INT2
  for (uint32_t seed = 1; seed <= kSequences; ++seed) {
    Kv kv = Kv::Random(seed, kBlocks * kBlockTokens);
    for (const auto& result : engine.Put(engine.Keys(Tokens(seed, kBlocks * kBlockTokens)), kv)) {
      EXPECT_EQ(result.code, KVTIER_OK);
    }
  }
  for (uint32_t seed = 1; seed <= kSequences; ++seed) {
    EXPECT_EQ(engine.Hits(engine.Keys(Tokens(seed, kBlocks * kBlockTokens))), kBlocks) << seed;
  }
  EXPECT_GT(*daemon_->Metric("kvtier_moved_blocks_total{from=\"cxl\",to=\"cold\"}"), 0.0);
  const uint32_t seed = 1;
  Kv kv = Kv::Random(seed, kBlocks * kBlockTokens), out(kBlocks * kBlockTokens);
  const auto results = engine.Fetch(engine.Keys(Tokens(seed, kBlocks * kBlockTokens)), out);
  ASSERT_GT(results.size(), 0u);
  EXPECT_LT(out.ErrorOver(kv, 0, results.size() * kBlockTokens), 0.5);
}

}  // namespace
}  // namespace kvtier::e2e
