// A daemon whose hot tier is on a GPU, which is fake: what clients see of it, and that they see no wrong
// bytes.
#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

DaemonSettings OnGpu(uint64_t warm_bytes, uint64_t cold_bytes) {
  DaemonSettings settings;
  settings.hot_bytes = 32 * kMiB;
  settings.hot_medium = "gpu:0";
  settings.warm_bytes = warm_bytes;
  settings.cold_bytes = cold_bytes;
  settings.program = "kvtierd-on-fake-gpu";
  return settings;
}

class GpuDaemon : public E2eTest {
 protected:
  void TearDown() override {
    ::unsetenv("KVTIER_FAKE_CUDA_LOSES_CONTEXT_AFTER");
    E2eTest::TearDown();
  }
  /// All blocks that a client gets have what was put, as near as their precision says.
  void ExpectRight(const Engine& engine, const api::Sequence& sequence, Kv& kv, size_t least,
                   kvtier_precision precision) {
    Kv out(kv.tokens());
    const auto results = engine.Fetch(sequence, out);
    ASSERT_GE(results.size(), least);
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_EQ(results[i].code, KVTIER_OK);
      EXPECT_EQ(results[i].precision, precision);
      const double error = kv.ErrorOver(out, i * kBlockTokens, kBlockTokens);
      EXPECT_LE(error, std::max(results[i].k_error, results[i].v_error) * 1.01 + 1e-6) << "block " << i;
    }
  }
};

TEST_F(GpuDaemon, BlocksArePutOnTheGpuReadBackDemotedAndDurable) {
  StartDaemon(OnGpu(32 * kMiB, 256 * kMiB));
  EXPECT_THAT(daemon_->Log(), HasSubstr("hot tier on gpu:0: "));
  EXPECT_THAT(daemon_->Log(), HasSubstr(" gpu:0, raw16), warm ("));
  const Engine engine = Connect();
  const size_t blocks = 8, tokens = blocks * kBlockTokens;
  const api::Sequence read = engine.Keys(Tokens(1, tokens)), demoted = engine.Keys(Tokens(2, tokens));
  Kv first = Kv::Random(1, tokens), second = Kv::Random(2, tokens);
  for (const auto& result : engine.Put(read, first)) EXPECT_EQ(result.code, KVTIER_OK);
  ExpectRight(engine, read, first, blocks, KVTIER_BITS16);
  ExpectRight(engine, read, first, blocks, KVTIER_BITS16);
  for (const auto& result : engine.Put(demoted, second, KVTIER_DURABLE)) EXPECT_EQ(result.code, KVTIER_OK);
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_blocks{tier=\"hot\",precision=\"bits16\"}"), 2.0 * blocks);
  EXPECT_EQ(Ctl(*daemon_, "--json demote hot").exit_code, 0);
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_blocks{tier=\"hot\",precision=\"bits16\"}"), 0);
  ExpectRight(engine, demoted, second, blocks, KVTIER_INT4);
  EXPECT_EQ(Ctl(*daemon_, "verify warm").exit_code, 0);
  EXPECT_EQ(daemon_->Stop(), 0);
}

TEST_F(GpuDaemon, TheGpusBlocksDieWithAKillAndDurableOnesComeBack) {
  StartDaemon(OnGpu(32 * kMiB, 256 * kMiB));
  const size_t blocks = 6, tokens = blocks * kBlockTokens;
  Kv kv = Kv::Random(3, tokens), other = Kv::Random(4, tokens);
  {
    const Engine engine = Connect();
    for (const auto& result : engine.Put(engine.Keys(Tokens(3, tokens)), kv, KVTIER_DURABLE)) {
      EXPECT_EQ(result.code, KVTIER_OK);
    }
    engine.Put(engine.Keys(Tokens(4, tokens)), other);
  }
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  const Engine engine = Connect();
  EXPECT_EQ(engine.Hits(engine.Keys(Tokens(4, tokens))), 0u);
  ExpectRight(engine, engine.Keys(Tokens(3, tokens)), kv, blocks, KVTIER_INT4);
}

TEST_F(GpuDaemon, MoreThanTheGpuHoldsIsEncodedThereOnItsWayDown) {
  StartDaemon(OnGpu(64 * kMiB, 0));
  const Engine engine = Connect();
  const size_t blocks = 64, tokens = blocks * kBlockTokens;
  for (uint32_t seed = 1; seed <= 6; ++seed) {  // 48 MiB
    Kv kv = Kv::Random(seed, tokens);
    for (const auto& result : engine.Put(engine.Keys(Tokens(seed, tokens)), kv))
      ASSERT_EQ(result.code, KVTIER_OK);
  }
  EXPECT_EQ(*daemon_->Metric("kvtier_codec_encoded_bytes_total"), 0);
  Kv kv = Kv::Random(1, tokens);
  ExpectRight(engine, engine.Keys(Tokens(1, tokens)), kv, blocks, KVTIER_INT4);
}

TEST_F(GpuDaemon, WithoutAnyHostTierReadersGetOneToLandIn) {
  StartDaemon(OnGpu(0, 256 * kMiB));
  EXPECT_THAT(daemon_->Log(), HasSubstr("gpu:0, raw16), landing ("));
  const Engine engine = Connect();
  const size_t blocks = 4, tokens = blocks * kBlockTokens;
  Kv kv = Kv::Random(1, tokens);
  const api::Sequence sequence = engine.Keys(Tokens(1, tokens));
  for (const auto& result : engine.Put(sequence, kv)) EXPECT_EQ(result.code, KVTIER_OK);
  ExpectRight(engine, sequence, kv, blocks, KVTIER_BITS16);
}

TEST_F(GpuDaemon, AGpuThatIsLostCostsItsBlocksAndTheDaemonGoesOn) {
  uint64_t lost = 0;
  for (const char* after : {"3", "40", "100"}) {
    ::setenv("KVTIER_FAKE_CUDA_LOSES_CONTEXT_AFTER", after, 1);
    StartDaemon(OnGpu(64 * kMiB, 0));
    const Engine engine = Connect();
    const size_t blocks = 16, tokens = blocks * kBlockTokens;
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      Kv kv = Kv::Random(seed, tokens);
      const api::Sequence sequence = engine.Keys(Tokens(seed, tokens));
      for (const auto& result : engine.Put(sequence, kv)) EXPECT_EQ(result.code, KVTIER_OK) << after;
      Kv out(tokens);
      const auto results = engine.Fetch(sequence, out);
      for (size_t i = 0; i < results.size(); ++i) {
        if (results[i].code != KVTIER_OK) continue;
        const double error = kv.ErrorOver(out, i * kBlockTokens, kBlockTokens);
        EXPECT_LE(error, std::max(results[i].k_error, results[i].v_error) * 1.01 + 1e-6);
      }
    }
    const bool told = Eventually(
        5, [&] { return daemon_->Log().find("is left alone until a restart") != std::string::npos; });
    lost += told;
    EXPECT_EQ(*daemon_->Metric("kvtier_tier_circuit_open{tier=\"hot\"}"), told ? 1.0 : 0.0);
    // The last ones were put when it was gone already.
    Kv kv = Kv::Random(8, tokens);
    ExpectRight(engine, engine.Keys(Tokens(8, tokens)), kv, blocks, KVTIER_INT4);
    EXPECT_TRUE(daemon_->Get("/healthz").ok());
    EXPECT_EQ(daemon_->Stop(), 0);
  }
  EXPECT_EQ(lost, 3u);
}

TEST_F(GpuDaemon, AGpuThatIsNotThereIsHostMemory) {
  DaemonSettings settings = OnGpu(32 * kMiB, 0);
  settings.hot_medium = "gpu:5";
  StartDaemon(settings);
  EXPECT_THAT(daemon_->Log(), HasSubstr("no GPU 5: there are 1: hot tier in host memory"));
  const Engine engine = Connect();
  const size_t tokens = 4 * kBlockTokens;
  Kv kv = Kv::Random(1, tokens);
  for (const auto& result : engine.Put(engine.Keys(Tokens(1, tokens)), kv)) EXPECT_EQ(result.code, KVTIER_OK);
  ExpectRight(engine, engine.Keys(Tokens(1, tokens)), kv, 4, KVTIER_BITS16);
}

}  // namespace
}  // namespace kvtier::e2e
